#include "weft/comm/types.h"

#include <algorithm>

#include "src/comm/base/cache_line.h"

namespace weft {

std::string_view Name(OpKind kind) {
  switch (kind) {
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kAllGatherShared:
      return "all_gather_shared";
    case OpKind::kAllGatherDelta:
      return "all_gather_delta";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kAllToAll:
      return "all_to_all";
    case OpKind::kSendReceive:
      return "send_receive";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kSend:
      return "send";
    case OpKind::kReceive:
      return "receive";
  }
  return "unknown";
}

std::string_view Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kBitAnd:
      return "bitwise and";
    case ReduceOp::kBitOr:
      return "bitwise or";
    case ReduceOp::kBitXor:
      return "bitwise xor";
  }
  return "unknown";
}

std::string_view Name(ElementKind elements) {
  switch (elements) {
    case ElementKind::kPlain:
      return "plain";
    case ElementKind::kComplex:
      return "complex";
    case ElementKind::kBool:
      return "bool";
    case ElementKind::kUnsigned:
      return "unsigned";
    case ElementKind::kFloat8E4M3Fn:
      return "float8_e4m3fn";
    case ElementKind::kFloat8E4M3Fnuz:
      return "float8_e4m3fnuz";
    case ElementKind::kFloat8E5M2:
      return "float8_e5m2";
    case ElementKind::kFloat8E5M2Fnuz:
      return "float8_e5m2fnuz";
    case ElementKind::kFloat8E8M0Fnu:
      return "float8_e8m0fnu";
    case ElementKind::kFloat4E2M1Fn:
      return "float4_e2m1fn";
    case ElementKind::kBytes:
      return "bytes";
  }
  return "unknown";
}

std::string_view Name(Priority priority) {
  switch (priority) {
    case Priority::kCritical:
      return "critical";
    case Priority::kPrefetch:
      return "prefetch";
    case Priority::kReduce:
      return "reduce";
    case Priority::kBulk:
      return "bulk";
  }
  return "unknown";
}

std::string_view Name(LanePurpose purpose) {
  switch (purpose) {
    case LanePurpose::kAllGather:
      return "all_gather";
    case LanePurpose::kReduceScatter:
      return "reduce_scatter";
    case LanePurpose::kAllReduce:
      return "all_reduce";
    case LanePurpose::kContext:
      return "context";
    case LanePurpose::kControl:
      return "control";
    case LanePurpose::kOptimizer:
      return "optimizer";
  }
  return "unknown";
}

std::string_view Name(WireCompression wire_compression) {
  return wire_compression == WireCompression::kLossless ? "lossless" : "none";
}

std::vector<int64_t> AllReduceCounts(int64_t elements, int ranks, DType dtype) {
  const auto line = static_cast<int64_t>(kLineBytes / SizeOf(dtype));
  const int64_t lines = (elements + line - 1) / line;
  const int64_t range = (lines + ranks - 1) / ranks * line;
  std::vector<int64_t> counts(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    counts[static_cast<size_t>(rank)] = std::clamp<int64_t>(elements - rank * range, 0, range);
  }
  return counts;
}

}  // namespace weft
