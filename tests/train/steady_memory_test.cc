// A run whose steps are alike stops taking memory: tensors live in what earlier ones left, images and
// gradients in what their pools hold.
#include <vector>

#include "tests/train/train_run.h"

namespace weft {
namespace {

class SteadyMemory : public TrainRun {
 protected:
  // One rank: how many buffers several hold at once depends on when their peers release them.
  void ExpectNothingTakenFromTheThirdStepOn() {
    config_.optimizer.steps = 6;
    const std::vector<StepMetrics> steps = Run({1, 1}).steps;
    ASSERT_EQ(steps.size(), 6);
    EXPECT_GT(steps[0].allocated_bytes, 0);
    for (size_t step = 2; step < steps.size(); ++step) {
      EXPECT_EQ(steps[step].allocated_bytes, 0) << "step " << step + 1;
    }
  }
};

TEST_F(SteadyMemory, IsTakenInTheFirstStepsOnly) { ExpectNothingTakenFromTheThirdStepOn(); }

TEST_F(SteadyMemory, IsTakenInTheFirstStepsOnlyInBf16) {
  config_.parallel.param_dtype = DType::kBF16;
  ExpectNothingTakenFromTheThirdStepOn();
}

TEST_F(SteadyMemory, IsTakenInTheFirstStepsOnlyWithCopies) {
  config_.parallel.zero_copy = false;
  ExpectNothingTakenFromTheThirdStepOn();
}

TEST_F(SteadyMemory, IsTakenInTheFirstStepsOnlyWhenLayersAreComputedAgain) {
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  config_.data.grad_accum = 2;
  ExpectNothingTakenFromTheThirdStepOn();
}

}  // namespace
}  // namespace weft
