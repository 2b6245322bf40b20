#include "app/panels/sharing_view.h"

#include "engine/policy/lane_spec.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace keyhole::test_sharing_view {
namespace {

std::vector<std::string> texts(int n_layers, int n_heads, int n_kv_heads, int n_kv_layers) {
    ModelConfig config;
    config.n_layers = n_layers;
    config.n_heads = n_heads;
    config.n_kv_heads = n_kv_heads;
    config.n_kv_layers = n_kv_layers;
    std::vector<std::string> out;
    for (const KvSharing& sharing : sharing_choices(config)) {
        EXPECT_EQ(check_sharing(sharing, config), "");
        out.push_back(format_kv_sharing(sharing));
    }
    return out;
}

TEST(SharingView, OffersWhatTheModelCanTake) {
    EXPECT_EQ(texts(4, 4, 4, 4), (std::vector<std::string>{"own", "gqa:2", "mqa", "mlkv:m=2,g=4",
                                                           "mlkv:m=2,g=1", "mlkv:m=1,g=4", "mlkv:m=1,g=1"}));
    EXPECT_EQ(texts(2, 8, 2, 2), (std::vector<std::string>{"own", "mqa", "mlkv:m=1,g=2", "mlkv:m=1,g=1"}));
    // A model that shares between layers already can only share further.
    EXPECT_EQ(texts(4, 4, 1, 2), (std::vector<std::string>{"own", "mlkv:m=1,g=1"}));
    EXPECT_EQ(texts(3, 2, 1, 3), (std::vector<std::string>{"own", "mlkv:m=1,g=1"}));
}

}  // namespace
}  // namespace keyhole::test_sharing_view
