// Bytes that the forward and the backward of a microbatch take on a rank, by formulas.
//
// Pure, but for the instructions of this machine's CPU, which decide the scratch of products.
#pragma once

#include <cstdint>
#include <vector>

#include "src/train/plan/run_plan.h"
#include "weft/nn/llama_config.h"
#include "weft/nn/parameter.h"

namespace weft {

// Shapes of the matrices of a decoder layer that Muon updates: those that IsHiddenMatrix selects.
std::vector<Shape> HiddenMatricesOfLayer(const LlamaConfig& model);

// Kept from forward to backward, outside of node memory.
int64_t KeptActivationBytes(const LlamaConfig& model, const RunPlan& plan);

// Gradients between the parts of the block whose backward runs.
int64_t WorkingBytes(const LlamaConfig& model, const RunPlan& plan);

// Logits of the head in fp32, and scratch memory of products.
int64_t ScratchBytes(const LlamaConfig& model, const RunPlan& plan);

// Node memory of attention over split sequences: 0 if no sequence is split. An upper bound: what is in use at
// once depends on when peers finish their reads.
int64_t ContextBytes(const LlamaConfig& model, const RunPlan& plan);

}  // namespace weft
