// What a training loop of one's own needs, in one include: ranks, memory, engine, mesh, layers, sharding,
// optimizer.
#pragma once

#include "weft/comm/comm_engine.h"
#include "weft/core/status.h"
#include "weft/core/tensor.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/device_mesh.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/nn/embedding.h"
#include "weft/nn/gelu.h"
#include "weft/nn/linear.h"
#include "weft/nn/llama.h"
#include "weft/nn/lm_head_loss.h"
#include "weft/nn/mlp.h"
#include "weft/nn/rms_norm.h"
#include "weft/nn/sequential.h"
#include "weft/nn/transpose.h"
#include "weft/optim/lr_schedule.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/sharding/fully_shard.h"
