// Memory of runs whose steps are alike: from the third step on, tensors reuse freed memory and buffers come
// from their pools.
#include <vector>

#include "tests/train/train_run.h"

namespace weft {
namespace {

class SteadyMemory : public TrainRun {
 protected:
  // With one rank. With several, the number of buffers in use depends on when peers release them.
  void ExpectNoAllocationsFromTheThirdStepOn() {
    config_.optimizer.steps = 6;
    const std::vector<StepMetrics> steps = Run({1, 1}).steps;
    ASSERT_EQ(steps.size(), 6);
    EXPECT_GT(steps[0].allocated_bytes, 0);
    for (size_t step = 2; step < steps.size(); ++step) {
      EXPECT_EQ(steps[step].allocated_bytes, 0) << "step " << step + 1;
    }
  }
};

TEST_F(SteadyMemory, IsAllocatedOnlyInTheFirstSteps) { ExpectNoAllocationsFromTheThirdStepOn(); }

TEST_F(SteadyMemory, IsAllocatedOnlyInTheFirstStepsInBf16) {
  config_.parallel.param_dtype = DType::kBF16;
  ExpectNoAllocationsFromTheThirdStepOn();
}

TEST_F(SteadyMemory, IsAllocatedOnlyInTheFirstStepsWithCopies) {
  config_.parallel.zero_copy = false;
  ExpectNoAllocationsFromTheThirdStepOn();
}

TEST_F(SteadyMemory, IsAllocatedOnlyInTheFirstStepsWithActivationCheckpoints) {
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  config_.data.grad_accum = 2;
  ExpectNoAllocationsFromTheThirdStepOn();
}

}  // namespace
}  // namespace weft
