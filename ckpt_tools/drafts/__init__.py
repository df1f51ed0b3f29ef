"""Draft heads for speculative decoding: MTP layers, EAGLE and EAGLE-3 heads, in every format that trainers and servers use."""
