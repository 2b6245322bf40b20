/// A tiny model and a text on which backends are compared with the reference.
#pragma once

#include "tests/reference/engine_run.h"
#include "tests/reference/tiny_model.h"

#include <memory>
#include <span>
#include <vector>

namespace reference {

/// A tiny model with its weights for the reference, and a text without equal tokens: a prompt and what
/// follows it.
class ComparedText {
  public:
    ComparedText(const TinyShape& shape, int n_prompt, int n_decode, unsigned seed);

    std::span<const int> tokens() const { return tokens_; }
    std::span<const int> prompt() const { return tokens().first(n_prompt_); }
    std::span<const int> decode() const { return tokens().subspan(n_prompt_); }
    /// Expects agreement with the reference on the CPU, with so many selections at least; or on CUDA.
    void expect_on_cpu(std::span<const Case> cases, int n_least) const;
    void expect_on_cuda(std::span<const Case> cases, int n_least) const;
    void expect_on_both(std::span<const Case> cases, int n_least) const;

  private:
    TinyModel folder_;
    std::size_t n_prompt_;
    std::vector<int> tokens_;

  public:
    const std::shared_ptr<const keyhole::Model> model;
    const Weights weights;
};

}  // namespace reference
