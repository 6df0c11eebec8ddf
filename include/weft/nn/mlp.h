// The feed-forward layer of transformers and mixers: down(gelu(up(x))), without biases.
//
// Inputs: x [..., features]. Outputs: the same, which the caller may overwrite.
#pragma once

#include <string>
#include <utility>

#include "weft/nn/gelu.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"

namespace weft {

class Mlp : public Sequential {
 public:
  Mlp(std::string name, int64_t features, int64_t hidden, Initializer initializer = {})
      : Sequential(std::move(name)) {
    Add<Linear>("up", features, hidden, initializer);
    Add<Gelu>("gelu");
    Add<Linear>("down", hidden, features, initializer);
  }
};

}  // namespace weft
