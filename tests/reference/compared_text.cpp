#include "tests/reference/compared_text.h"

#include "engine/base/index.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/different_tokens.h"

#include <gtest/gtest.h>

namespace reference {

ComparedText::ComparedText(const TinyShape& shape, int n_prompt, int n_decode, unsigned seed)
    : folder_(shape),
      n_prompt_(keyhole::to_index(n_prompt)),
      tokens_(different_tokens(n_prompt + n_decode, seed)),
      model(keyhole::load_model(folder_.folder())),
      weights(load_weights(folder_.folder())) {}

void ComparedText::expect_on_cpu(std::span<const Case> cases, int n_least) const {
    SCOPED_TRACE("cpu");
    expect_agreement(compare_with_reference(model, weights, cases, prompt(), decode()), n_least);
}

void ComparedText::expect_on_cuda(std::span<const Case> cases, int n_least) const {
    SCOPED_TRACE("cuda");
    const auto cuda = cuda_backend(model);
    expect_agreement(compare_with_reference(model, weights, cases, prompt(), decode(), cuda.get()), n_least);
}

void ComparedText::expect_on_both(std::span<const Case> cases, int n_least) const {
    expect_on_cpu(cases, n_least);
    expect_on_cuda(cases, n_least);
}

}  // namespace reference
