// Large pages for the weights of a model: values and addresses stay, and small models are left alone.
#include "engine/backend/cpu/weight_pages.h"

#include "engine/base/index.h"
#include "engine/model/seeded_model.h"
#include "tests/reference/tiny_shape.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace keyhole::test_weight_pages {
namespace {

struct Copy {
    const void* data;
    std::vector<std::byte> bytes;
};

std::vector<Copy> copies_of(const Model& model) {
    std::vector<Copy> copies;
    visit_weights(model.weights(), [&](const Weight& w) {
        const auto* data = static_cast<const std::byte*>(w.data);
        copies.push_back({data, {data, data + to_index(stored_bytes(w))}});
    });
    return copies;
}

TEST(WeightPages, KeepAddressesAndValuesAndAreMeasuredOnce) {
    ModelShape shape = reference::tiny_shape(300);
    shape.config.n_layers = 1;
    shape.config.d_ff = 560'000;  // three matrices of 72 MB: shorter ones stay in small pages
    const auto model = make_seeded_model(shape, DType::f16);
    const std::vector<Copy> before = copies_of(*model);
    std::size_t all_bytes = 0;
    for (const Copy& copy : before) all_bytes += copy.bytes.size();
    ASSERT_GT(all_bytes, std::size_t{128} << 20);

    ThreadPool pool(2);
    const cpu::WeightPages pages = cpu::use_large_pages(model, pool);
    std::size_t i = 0;
    visit_weights(model->weights(), [&](const Weight& w) {
        EXPECT_EQ(w.data, before[i].data);
        EXPECT_EQ(std::memcmp(w.data, before[i].bytes.data(), before[i].bytes.size()), 0) << i;
        ++i;
    });

    if (pages.speed == 0) GTEST_SKIP() << "this system gives no large pages";
    // All or only what was measured: 32 MB.
    if (pages.speed < 1.05)
        EXPECT_EQ(pages.moved_bytes, std::int64_t{32} << 20);
    else
        EXPECT_GT(pages.moved_bytes, std::int64_t{64} << 20);
    EXPECT_LE(pages.moved_bytes, static_cast<std::int64_t>(all_bytes));
    EXPECT_NE(pages.text().find(" MB of weights in pages of 2 MB"), std::string::npos) << pages.text();
    const cpu::WeightPages again = cpu::use_large_pages(model, pool);
    EXPECT_EQ(again.speed, pages.speed);
    EXPECT_EQ(again.moved_bytes, pages.moved_bytes);
}

TEST(WeightPages, LeaveASmallModelAlone) {
    ThreadPool pool(2);
    const cpu::WeightPages pages =
        cpu::use_large_pages(make_seeded_model(reference::tiny_shape(300), DType::f16), pool);
    EXPECT_EQ(pages.speed, 0);
    EXPECT_EQ(pages.moved_bytes, 0);
    EXPECT_EQ(pages.text(), "");
}

}  // namespace
}  // namespace keyhole::test_weight_pages
