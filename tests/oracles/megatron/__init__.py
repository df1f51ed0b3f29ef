"""The real megatron-core 0.16.1, on CPU, as the judge of torch-dist checkpoints.

Nothing here imports the converter: what a checkpoint must hold is stated a second time, from the Hugging Face tensors.

* `run.run_job` / `run.run_step`: start one process per rank and run a list of steps in them (what tests call).
* `configs`, `shapes`, `tiny`: tiny Hugging Face folders of every supported family, made on the fly.
* `reference`: what each Megatron parameter must be.
* `forward`: what Hugging Face's own models compute.
* `sharding`: which part of a parameter a tensor/pipeline/expert rank must hold.
* `model`, `mamba`, `shims`, `stand_ins`, `mamba_kernels`: build the real GPTModel or MambaModel on a machine without a GPU.
* `ling`, `step`, `oss`, `hybrid`: families with words, layers or a model of their own.
* `steps`, `training_state`, `worker`: what runs inside a rank.
"""
