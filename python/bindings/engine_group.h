// GroupCollectives over the lanes of a session.
//
// Thread safety: any thread may call any member; operations of one thread on one stream keep their order.
// Lifetime: holds the session.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "python/bindings/session.h"
#include "python/interface/group_collectives.h"
#include "weft/comm/element_enums.h"
#include "weft/core/dtype_enum.h"

namespace weft::python {

class EngineGroup final : public GroupCollectives {
 public:
  // Collective: the ranks of the group, in one order on ranks that share several groups.
  // Errors: those of Session::MakeLanes.
  static absl::StatusOr<std::shared_ptr<EngineGroup>> Create(std::shared_ptr<Session> session,
                                                             const std::string& name,
                                                             const std::vector<int>& ranks,
                                                             absl::Duration timeout);

  int rank() const override { return lanes_->group.group_rank; }
  int size() const override { return lanes_->group.size(); }
  const std::string& name() const { return lanes_->group.name; }
  const std::shared_ptr<Session>& session() const { return session_; }

  OperationPtr AllGather(Call call, const void* input, void* output, DType type,
                         const std::vector<int64_t>& counts) override;
  OperationPtr ReduceScatter(Call call, const void* input, void* output, DType type, ReduceOp reduction,
                             const std::vector<int64_t>& counts) override;
  OperationPtr AllReduce(Call call, const void* input, void* output, DType type, ReduceOp reduction,
                         int64_t count) override;
  OperationPtr Broadcast(Call call, void* buffer, DType type, int64_t count, int root) override;
  OperationPtr AllToAll(Call call, DType type, const std::vector<Part>& sends,
                        const std::vector<Part>& receives) override;
  OperationPtr Barrier(Call call) override;
  OperationPtr Send(Call call, const void* data, DType type, int64_t count, int to, int tag) override;
  OperationPtr Receive(Call call, void* data, DType type, int64_t count, int from, int tag) override;
  Allocation Allocate(size_t bytes) override;
  void Abort(const std::string& cause) override { session_->Abort(cause); }
  void CloseSession() override { session_->Close(); }

 private:
  EngineGroup(std::shared_ptr<Session> session, std::shared_ptr<const Session::GroupLanes> lanes);
  LaneId Lane(Stream stream) const { return lanes_->lanes[static_cast<size_t>(stream)]; }
  // See EngineOperation::Submit.
  bool NeedsRelease(std::initializer_list<const void*> buffers) const;
  bool NeedsRelease(const std::vector<Part>& parts) const;

  const std::shared_ptr<Session> session_;
  const std::shared_ptr<const Session::GroupLanes> lanes_;
  const bool spans_nodes_;
};

}  // namespace weft::python
