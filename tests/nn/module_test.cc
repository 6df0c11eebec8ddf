#include "weft/nn/module.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// y = x + addend; the gradient passes through. Saves its input, and records in `popped` what backward pops.
class Shift : public Module {
 public:
  Shift(std::string name, float addend) : Module(std::move(name)), addend_(addend) {
    weight = AddParameter("weight", {2, 3}, {});
    weight->data = memory_.view();
    weight->grad = memory_.view();
  }
  Parameter* weight;
  std::vector<float> popped;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override {
    if (invocation.gradients()) invocation.Save(this, {inputs[0]});
    return Tensors{Tensor::Scalar(*inputs[0].As<float>() + addend_)};
  }
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override {
    popped.push_back(*invocation.PopSaved(this)[0].As<float>());
    return output_gradients;
  }

 private:
  float addend_;
  Tensor memory_ = Tensor::Zeros(DType::kF32, {2, 3});
};

// Two Shifts, one after the other. The first one's weight is tied to this module.
class Pair : public Module {
 public:
  explicit Pair(const std::string& name) : Module(name) {
    first = AddChild(std::make_unique<Shift>(absl::StrCat(name, ".first"), 1.0F));
    second = AddChild(std::make_unique<Shift>(absl::StrCat(name, ".second"), 10.0F));
    ShareParameter(first->parameters()[0]);
  }
  Shift* first;
  Shift* second;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override {
    WEFT_ASSIGN_OR_RETURN(const Tensors hidden, first->Forward(invocation, inputs));
    return second->Forward(invocation, hidden);
  }
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override {
    WEFT_ASSIGN_OR_RETURN(const Tensors hidden, second->Backward(invocation, output_gradients));
    return first->Backward(invocation, hidden);
  }
};

TEST(Module, NamesParametersByTheirPath) {
  Pair pair("model.layers.0");
  EXPECT_EQ(pair.second->weight->name, "model.layers.0.second.weight");
  EXPECT_EQ(Shift("", 0.0F).weight->name, "weight");
}

TEST(Module, ListsATiedParameterOnceAtItsFirstUse) {
  Pair pair("pair");
  std::vector<std::string> names;
  for (const auto& parameter : pair.AllParameters()) names.push_back(parameter->name);
  EXPECT_THAT(names, ElementsAre("pair.first.weight", "pair.second.weight"));
  EXPECT_EQ(pair.parameters()[0].get(), pair.first->weight);
}

TEST(Module, ListsDescendantsParentsFirst) {
  Pair pair("pair");
  EXPECT_THAT(pair.Descendants(), ElementsAre(&pair, pair.first, pair.second));
}

TEST(Module, RunsHooksInOrderAndLetsThemReplaceTensors) {
  Shift shift("shift", 1.0F);
  const auto append_digit = [](float digit) {
    return [digit](Module&, Invocation&, Tensors& tensors) {
      tensors[0] = Tensor::Scalar(*tensors[0].As<float>() * 10.0F + digit);
      return absl::OkStatus();
    };
  };
  shift.AddForwardPreHook(append_digit(2.0F));
  shift.AddForwardPreHook(append_digit(3.0F));
  shift.AddForwardPostHook(append_digit(5.0F));
  shift.AddBackwardPreHook(append_digit(7.0F));
  shift.AddBackwardPostHook(append_digit(8.0F));
  Invocation invocation;
  const auto outputs = shift.Forward(invocation, {Tensor::Scalar(1.0F)});
  ASSERT_TRUE(outputs.ok());
  EXPECT_EQ(*(*outputs)[0].As<float>(), 1245.0F);  // 1 -> 12 -> 123 -> +1 -> 124 -> 1245
  const auto gradients = shift.Backward(invocation, {Tensor::Scalar(1.0F)});
  ASSERT_TRUE(gradients.ok());
  EXPECT_EQ(*(*gradients)[0].As<float>(), 178.0F);
}

// As if the sharded model had been destroyed, or if the module is called outside of its passes.
TEST(Module, IsNotCalledWithoutMemoryOfItsParameters) {
  Shift shift("shift", 1.0F);
  Invocation invocation;
  ASSERT_TRUE(shift.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
  const TensorView memory = shift.weight->data;
  const auto expect_error = [](const absl::StatusOr<Tensors>& result, const char* message) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(message));
  };
  shift.weight->grad = TensorView();
  expect_error(shift.Backward(invocation, {Tensor::Scalar(1.0F)}), "has no memory for its gradient");
  shift.weight->data = TensorView();
  expect_error(shift.Backward(invocation, {Tensor::Scalar(1.0F)}),
               "shift.weight is used while it is sharded");
  Invocation next;
  expect_error(shift.Forward(next, {Tensor::Scalar(1.0F)}), "shift.weight is used while it is sharded");
  EXPECT_THAT(shift.popped, ::testing::IsEmpty());
  shift.weight->data = shift.weight->grad = memory;
  EXPECT_TRUE(shift.Backward(invocation, {Tensor::Scalar(1.0F)}).ok());
}

TEST(Module, DoesNotRunARemovedHook) {
  Shift shift("shift", 0.0F);
  int calls = 0;
  const auto count = [&calls](Module&, Invocation&, Tensors&) {
    ++calls;
    return absl::OkStatus();
  };
  const Module::HookId removed = shift.AddForwardPreHook(count);
  shift.AddForwardPostHook(count);
  shift.RemoveHook(removed);
  Invocation invocation;
  ASSERT_TRUE(shift.Forward(invocation, {Tensor::Scalar(0.0F)}).ok());
  EXPECT_EQ(calls, 1);
}

TEST(Module, StopsAtAFailingHook) {
  Shift shift("shift", 0.0F);
  shift.AddForwardPreHook([](Module& module, Invocation&, Tensors&) {
    return absl::UnavailableError(absl::StrCat("no weights for ", module.name()));
  });
  Invocation invocation;
  const auto outputs = shift.Forward(invocation, {Tensor::Scalar(0.0F)});
  EXPECT_EQ(outputs.status(), absl::UnavailableError("no weights for shift"));
  EXPECT_TRUE(invocation.empty());
}

TEST(Module, PassesEachErrorOfItselfOrAChildToErrorHooksOnce) {
  Pair pair("pair");
  std::vector<std::string> reports;
  pair.AddErrorHook([&reports](Module& module, const absl::Status& error) {
    reports.push_back(absl::StrCat(module.name(), ": ", error.message()));
  });
  Invocation invocation;
  ASSERT_TRUE(pair.Forward(invocation, {Tensor::Scalar(0.0F)}).ok());
  EXPECT_THAT(reports, ::testing::IsEmpty());
  const auto failing = [](Module&, Invocation&, Tensors&) { return absl::DataLossError("broken"); };
  pair.first->AddBackwardPreHook(failing);
  EXPECT_FALSE(pair.Backward(invocation, {Tensor::Scalar(0.0F)}).ok());
  EXPECT_THAT(reports, ElementsAre("pair: broken"));
}

TEST(Module, PassesAnExceptionToErrorHooksAndRethrowsIt) {
  Pair pair("pair");
  std::vector<std::string> reports;
  const Module::HookId hook = pair.AddErrorHook(
      [&reports](Module&, const absl::Status& error) { reports.emplace_back(error.message()); });
  pair.second->AddForwardPreHook(
      [](Module&, Invocation&, Tensors&) -> absl::Status { throw std::runtime_error("broken"); });
  Invocation invocation;
  const auto forward = [&] { return pair.Forward(invocation, {Tensor::Scalar(0.0F)}); };
  EXPECT_THAT(forward, ::testing::ThrowsMessage<std::runtime_error>("broken"));
  EXPECT_THAT(reports, ElementsAre("an exception escaped module 'pair': broken"));
  pair.RemoveHook(hook);
  EXPECT_THAT(forward, ::testing::ThrowsMessage<std::runtime_error>("broken"));
  EXPECT_THAT(reports, ::testing::SizeIs(1));
}

TEST(Module, PassesANonStdExceptionToErrorHooks) {
  Shift shift("shift", 0.0F);
  std::vector<std::string> reports;
  shift.AddErrorHook(
      [&reports](Module&, const absl::Status& error) { reports.emplace_back(error.message()); });
  shift.AddForwardPreHook([](Module&, Invocation&, Tensors&) -> absl::Status { throw 7; });
  Invocation invocation;
  EXPECT_THROW(static_cast<void>(shift.Forward(invocation, {Tensor::Scalar(0.0F)})), int);
  EXPECT_THAT(
      reports,
      ElementsAre("an exception escaped module 'shift': its type is not derived from std::exception"));
}

// Forgets the backward of its first child.
class ForgetfulPair : public Pair {
 public:
  using Pair::Pair;

 protected:
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override {
    return second->Backward(invocation, output_gradients);
  }
};

TEST(Module, FailsIfItsBackwardLeavesOutAChild) {
  for (const bool checkpointed : {false, true}) {
    ForgetfulPair pair("pair");
    pair.SetActivationCheckpointing(checkpointed);
    Invocation invocation;
    ASSERT_TRUE(pair.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
    const absl::Status status = pair.Backward(invocation, {Tensor::Scalar(1.0F)}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the backward of 'pair' left out the backward of 'pair.first'"));
  }
}

TEST(Module, MayLeaveOutTheBackwardOfAFrozenChild) {
  ForgetfulPair pair("pair");
  pair.first->weight->requires_grad = false;
  Invocation invocation;
  ASSERT_TRUE(pair.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
  EXPECT_TRUE(pair.Backward(invocation, {Tensor::Scalar(1.0F)}).ok());
}

TEST(Module, FailsIfItsBackwardLeavesOutAFrozenChildThatAHookRequires) {
  for (const std::string& reason : {std::string(), std::string("whose gradient a hook awaits")}) {
    ForgetfulPair pair("pair");
    pair.first->weight->requires_grad = false;
    pair.first->AddForwardPreHook([&reason](Module& module, Invocation& invocation, Tensors&) {
      invocation.RequireBackward(module, [&reason] { return reason; });
      return absl::OkStatus();
    });
    Invocation invocation;
    ASSERT_TRUE(pair.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
    const absl::Status status = pair.Backward(invocation, {Tensor::Scalar(1.0F)}).status();
    EXPECT_EQ(status.ok(), reason.empty());
    if (status.ok()) continue;
    EXPECT_EQ(std::string(status.message()),
              "the backward of 'pair' left out the backward of 'pair.first', whose gradient a hook awaits");
  }
}

TEST(Module, MayWaitForItsBackwardWhileOtherCallsOfTheInvocationRunTheirs) {
  Pair one("one");
  Pair two("two");
  Invocation invocation;
  for (int call = 0; call < 2; ++call) {
    ASSERT_TRUE(one.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
    ASSERT_TRUE(two.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
  }
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(two.Backward(invocation, {Tensor::Scalar(1.0F)}).ok());
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(one.Backward(invocation, {Tensor::Scalar(1.0F)}).ok());
  EXPECT_TRUE(invocation.empty());
}

TEST(Invocation, PopsSavesInReverseOrderOfTheCalls) {
  Shift shift("shift", 0.0F);
  Invocation invocation;
  ASSERT_TRUE(shift.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
  ASSERT_TRUE(shift.Forward(invocation, {Tensor::Scalar(2.0F)}).ok());
  EXPECT_FALSE(invocation.empty());
  ASSERT_TRUE(shift.Backward(invocation, {Tensor::Scalar(0.0F)}).ok());
  ASSERT_TRUE(shift.Backward(invocation, {Tensor::Scalar(0.0F)}).ok());
  EXPECT_THAT(shift.popped, ElementsAre(2.0F, 1.0F));
  EXPECT_TRUE(invocation.empty());
}

TEST(Invocation, KeepsSavesOfConcurrentInvocationsSeparate) {
  Pair pair("pair");
  Invocation one;
  Invocation two;
  ASSERT_TRUE(pair.Forward(one, {Tensor::Scalar(1.0F)}).ok());
  ASSERT_TRUE(pair.Forward(two, {Tensor::Scalar(2.0F)}).ok());
  ASSERT_TRUE(pair.Backward(one, {Tensor::Scalar(0.0F)}).ok());
  ASSERT_TRUE(pair.Backward(two, {Tensor::Scalar(0.0F)}).ok());
  EXPECT_THAT(pair.first->popped, ElementsAre(1.0F, 2.0F));
}

TEST(Invocation, SavesNothingWithoutGradients) {
  Pair pair("pair");
  Invocation invocation(/*gradients=*/false);
  ASSERT_TRUE(pair.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
  EXPECT_TRUE(invocation.empty());
}

TEST(Invocation, KeepsStateByKeyAndTypeUntilDestroyed) {
  const auto alive = std::make_shared<int>(0);
  struct HookState {
    int count = 0;
    std::shared_ptr<int> holds;
  };
  const int keys[2] = {};
  {
    Invocation invocation;
    invocation.State<HookState>(&keys[0]).count = 3;
    invocation.State<HookState>(&keys[0]).holds = alive;
    EXPECT_EQ(invocation.State<HookState>(&keys[0]).count, 3);
    EXPECT_EQ(invocation.State<HookState>(&keys[1]).count, 0);
    EXPECT_EQ(invocation.State<int>(&keys[0]), 0);
    EXPECT_EQ(alive.use_count(), 2);
  }
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(ActivationCheckpointing, SavesOnlyInputsAndRecomputesInBackward) {
  Pair pair("pair");
  pair.SetActivationCheckpointing(true);
  int forwards = 0;
  pair.first->AddForwardPreHook([&forwards](Module&, Invocation& invocation, Tensors&) {
    EXPECT_EQ(invocation.is_saving(), forwards++ > 0);
    return absl::OkStatus();
  });
  Invocation invocation;
  ASSERT_TRUE(pair.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
  EXPECT_FALSE(invocation.empty());
  EXPECT_EQ(forwards, 1);
  ASSERT_TRUE(pair.Backward(invocation, {Tensor::Scalar(0.0F)}).ok());
  EXPECT_EQ(forwards, 2);
  EXPECT_THAT(pair.first->popped, ElementsAre(1.0F));
  EXPECT_THAT(pair.second->popped, ElementsAre(2.0F));
  EXPECT_TRUE(invocation.empty());
}

TEST(ActivationCheckpointing, RunsOwnForwardHooksOnceAndRecomputesFromTheInputsTheyReturned) {
  Shift shift("shift", 1.0F);
  shift.SetActivationCheckpointing(true);
  shift.AddForwardPreHook([](Module&, Invocation&, Tensors& tensors) {
    tensors[0] = Tensor::Scalar(*tensors[0].As<float>() * 10.0F);
    return absl::OkStatus();
  });
  Invocation invocation;
  ASSERT_TRUE(shift.Forward(invocation, {Tensor::Scalar(3.0F)}).ok());
  ASSERT_TRUE(shift.Backward(invocation, {Tensor::Scalar(0.0F)}).ok());
  EXPECT_THAT(shift.popped, ElementsAre(30.0F));
}

TEST(ActivationCheckpointing, KeepsSavesOfOtherCallsOfAModuleSeparate) {
  // One shift is called alone, then three times within checkpointed modules, then alone again.
  Shift shared("shared", 1.0F);
  struct Wrapper : Module {
    explicit Wrapper(Shift& shift) : Module("wrapper"), inner(shift) {}
    Shift& inner;
    absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override {
      return inner.Forward(invocation, inputs);
    }
    absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& gradients) override {
      return inner.Backward(invocation, gradients);
    }
  };
  Wrapper one(shared);
  Wrapper two(one.inner);
  for (Wrapper* wrapper : {&one, &two}) wrapper->SetActivationCheckpointing(true);
  const std::vector<Module*> calls = {&shared, &one, &two, &one, &shared};
  Invocation invocation;
  Tensors tensors = {Tensor::Scalar(0.0F)};
  for (Module* module : calls) tensors = *module->Forward(invocation, std::move(tensors));
  for (size_t i = calls.size(); i-- > 0;) tensors = *calls[i]->Backward(invocation, std::move(tensors));
  EXPECT_THAT(shared.popped, ElementsAre(4.0F, 3.0F, 2.0F, 1.0F, 0.0F));
  EXPECT_TRUE(invocation.empty());
}

TEST(ActivationCheckpointing, NestsAndKeepsInvocationsSeparate) {
  Pair pair("pair");
  pair.SetActivationCheckpointing(true);
  pair.second->SetActivationCheckpointing(true);
  Invocation one;
  Invocation two;
  ASSERT_TRUE(pair.Forward(one, {Tensor::Scalar(1.0F)}).ok());
  ASSERT_TRUE(pair.Forward(two, {Tensor::Scalar(2.0F)}).ok());
  ASSERT_TRUE(pair.Backward(one, {Tensor::Scalar(0.0F)}).ok());
  ASSERT_TRUE(pair.Backward(two, {Tensor::Scalar(0.0F)}).ok());
  EXPECT_THAT(pair.first->popped, ElementsAre(1.0F, 2.0F));
  EXPECT_THAT(pair.second->popped, ElementsAre(2.0F, 3.0F));
  EXPECT_TRUE(one.empty() && two.empty());
}

TEST(ActivationCheckpointing, SavesNothingWithoutGradients) {
  Pair pair("pair");
  pair.SetActivationCheckpointing(true);
  Invocation invocation(/*gradients=*/false);
  ASSERT_TRUE(pair.Forward(invocation, {Tensor::Scalar(1.0F)}).ok());
  EXPECT_TRUE(invocation.empty());
}

}  // namespace
}  // namespace weft
