// Feed-forward layer of transformers and mixers: y = down(gelu(up(x))), without biases. `hidden` is the
// number of features between the two layers.
//
// Inputs: x [..., features]. Outputs: y of the same shape and dtype; the caller may overwrite it.
#pragma once

#include <cstdint>
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
