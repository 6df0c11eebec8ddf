// Umbrella header for a training loop, and guide to the public headers. Read them in this order:
//
//   mesh/bootstrap.h                       environment of a rank: an MPI process, a process of any other
//                                          launcher, a thread, or simulated
//   mesh/device_mesh.h                     grid of ranks with named axes: replicate, shard, context
//   core/tensor.h                          tensors
//   nn/module.h                            base class of layers: forward, backward, parameters, hooks
//   nn/invocation.h                        state of one pass: saved tensors, loss scale, sequence
//   nn/sequential.h                        containers of layers; each layer has a header beside it
//   nn/llama.h                             the Llama model
//   sharding/policy.h                      options of sharding: layout, prefetch, reshard, dtypes, unused
//                                          gradients
//   sharding/fully_shard.h                 FSDP, HSDP or DDP of a model, depending on the mesh
//   sharding/sharded_groups.h              the same for parameters of other programs, without modules
//   optim/sharded_adamw.h                  AdamW over the shards; sharded_sgd.h, sharded_muon.h: other rules
//   sharding/state_dict.h                  saving and loading by parameter name
//   context_parallel/context_parallel.h    attention over sequences that are split over ranks
//   context_parallel/sequence_layout.h     division of a sequence over its ranks
//   context_parallel/exchange_hooks.h      exchanges between any two modules of a model
//   context_parallel/sequence_modules.h    modules that split and gather a sequence
//   context_parallel/sharded_buffers.h     division of input tensors over the ranks of a sequence
//   comm/comm_engine.h                     collectives, for code that communicates itself
//
// Not included, as a training loop may do without them:
//
//   train/checkpoint.h                     checkpoints of a sharded run
//   train/hf_weights.h                     weights of any model in a Hugging Face folder
//   train/safetensors.h                    tensors of a model folder
//   train/planner.h                        forecasts of runs
//
// Complete programs: examples/mixer.cc, examples/long_sequence.cc, examples/forward_only.cc.
#pragma once

#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/choose_scheme.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/context_parallel/exchange_hooks.h"
#include "weft/context_parallel/sequence_gather.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/context_parallel/sequence_modules.h"
#include "weft/context_parallel/sharded_buffers.h"
#include "weft/core/status.h"
#include "weft/core/tensor.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/device_mesh.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/mesh/store_bootstrap.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/nn/attention.h"
#include "weft/nn/dropout.h"
#include "weft/nn/embedding.h"
#include "weft/nn/gelu.h"
#include "weft/nn/heads.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/llama.h"
#include "weft/nn/lm_head_loss.h"
#include "weft/nn/mlp.h"
#include "weft/nn/position_embedding.h"
#include "weft/nn/rms_norm.h"
#include "weft/nn/sequential.h"
#include "weft/nn/transpose.h"
#include "weft/optim/loss_scaler.h"
#include "weft/optim/lr_schedule.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/optim/sharded_muon.h"
#include "weft/optim/sharded_sgd.h"
#include "weft/sharding/fully_shard.h"
#include "weft/sharding/sharded_groups.h"
#include "weft/sharding/state_dict.h"
