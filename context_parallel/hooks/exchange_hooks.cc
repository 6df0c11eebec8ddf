#include "weft/context_parallel/exchange_hooks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "context_parallel/hooks/consumer_link.h"
#include "context_parallel/hooks/exchange_slot.h"
#include "weft/core/status.h"

namespace weft {
namespace {

absl::Status CheckSlot(const ExchangeHooks::Slot& slot) {
  const auto refuse = [&](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("slot '", slot.name, "' ", why));
  };
  if (slot.exchange == nullptr) return refuse("has no exchange: give one");
  if (slot.heads < 0) return refuse("has a number of heads below 0: give 0 if the output has a dim of heads");
  if (slot.source.output.value_or(0) < 0) return refuse("names an output below 0: count from 0");
  const auto features = slot.source.features.value_or(ExchangeSource::Features{0, 1});
  if (features.first < 0 || features.count < 1) return refuse("has an empty range of features");
  return absl::OkStatus();
}

absl::StatusOr<size_t> InputIndex(const Module& consumer, std::string_view input) {
  const absl::Span<const std::string_view> names = consumer.input_names();
  const auto found = std::find(names.begin(), names.end(), input);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  return absl::InvalidArgumentError(absl::StrCat(
      consumer.name(), " has no input '", ToAbsl(input), "': ",
      names.empty()
          ? std::string("its inputs have no names; give a position")
          : absl::StrCat("name one of ", absl::StrJoin(names, ", ", [](std::string* text, auto name) {
                           text->append(name);
                         }))));
}

}  // namespace

class ExchangeHooks::Impl {
 public:
  absl::Status AddSlot(Slot slot) {
    WEFT_RETURN_IF_ERROR(CheckSlot(slot));
    if (Find(slot.name) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is a slot '", slot.name, "' already: give each slot a name of its own"));
    }
    slots_.push_back(std::make_unique<ExchangeSlot>(std::move(slot), counters_));
    return absl::OkStatus();
  }

  absl::Status AddConsumer(std::string_view slot_name, Module& consumer, absl::StatusOr<size_t> input) {
    ExchangeSlot* slot = Find(slot_name);
    if (slot == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("there is no slot '", ToAbsl(slot_name), "' for ",
                                                     consumer.name(), ": call AddSlot first"));
    }
    WEFT_RETURN_IF_ERROR(input.status());
    auto found = std::find_if(consumers_.begin(), consumers_.end(),
                              [&](const auto& link) { return &link->module() == &consumer; });
    if (found == consumers_.end()) {
      found = consumers_.insert(consumers_.end(), std::make_unique<ConsumerLink>(consumer));
    }
    return (*found)->Add(*slot, *input);
  }

  const Counters& counters() const { return counters_; }

 private:
  ExchangeSlot* Find(std::string_view name) const {
    const auto found =
        std::find_if(slots_.begin(), slots_.end(), [&](const auto& slot) { return slot->name() == name; });
    return found == slots_.end() ? nullptr : found->get();
  }

  Counters counters_;
  std::vector<std::unique_ptr<ExchangeSlot>> slots_;
  std::vector<std::unique_ptr<ConsumerLink>> consumers_;
};

ExchangeHooks::ExchangeHooks() : impl_(std::make_unique<Impl>()) {}
ExchangeHooks::~ExchangeHooks() = default;

absl::Status ExchangeHooks::AddSlot(Slot slot) { return impl_->AddSlot(std::move(slot)); }

absl::Status ExchangeHooks::AddConsumer(std::string_view slot, Module& consumer, int input) {
  if (input < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", input, " of ", consumer.name(), " does not exist: count from 0"));
  }
  return impl_->AddConsumer(slot, consumer, static_cast<size_t>(input));
}

absl::Status ExchangeHooks::AddConsumer(std::string_view slot, Module& consumer, std::string_view input) {
  return impl_->AddConsumer(slot, consumer, InputIndex(consumer, input));
}

const ExchangeHooks::Counters& ExchangeHooks::counters() const { return impl_->counters(); }

}  // namespace weft
