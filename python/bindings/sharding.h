// Python bindings of parameter groups (weft/sharding/sharded_groups.h) and of the AdamW kernel.
#pragma once

#include <nanobind/nanobind.h>

namespace weft::python {

// Adds ShardedGroups and adamw_step to the module.
void BindSharding(nanobind::module_& module);

}  // namespace weft::python
