// What parts of a model mean for a lane, in words.
#include "app/view/model_words.h"

#include <gtest/gtest.h>

namespace keyhole::test_model_words {
namespace {

TEST(ModelWords, ABudgetIsAtMostTheWindowOfASlidingLayer) {
    ModelConfig config;
    config.n_layers = 4;
    EXPECT_EQ(sliding_words(config, 64), "");
    config.window = {128, 128, 128, 0};
    EXPECT_EQ(sliding_words(config, 512),
              "3 of 4 layers slide: there a step sees the newest 128 tokens, so the budget is at most 128");
    EXPECT_EQ(sliding_words(config, 0), sliding_words(config, 512)) << "0: everything is kept";
    EXPECT_EQ(sliding_words(config, 128), "") << "the window takes nothing from it";
    EXPECT_EQ(sliding_words(config, 64), "");
}

TEST(ModelWords, ExpertsStandByLayer) {
    ModelConfig config;
    config.n_layers = 2;
    LaneRecord record;
    EXPECT_EQ(expert_words(config, record, 0), "") << "the model has none";
    config.n_experts = 8;
    config.n_experts_used = 2;
    EXPECT_EQ(expert_words(config, record, 0), "") << "not recorded";
    record.experts = {7, 2, RowOutput::kNoExpert, RowOutput::kNoExpert};
    EXPECT_EQ(expert_words(config, record, 0), "7, 2 of 8");
    EXPECT_EQ(expert_words(config, record, 1), "none");
    EXPECT_EQ(all_expert_words(config, record), "layer 0: 7, 2 of 8\nlayer 1: none");
}

}  // namespace
}  // namespace keyhole::test_model_words
