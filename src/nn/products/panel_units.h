// The tables of the units, which the sources compiled for their instructions define.
#pragma once

#include "src/nn/products/panel_kernels.h"

namespace weft::panels {

extern const PanelUnit kAmxUnit;
extern const PanelUnit kAvx512Bf16Unit;

}  // namespace weft::panels
