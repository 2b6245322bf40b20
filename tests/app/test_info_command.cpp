// `keyhole info` names how a model's rotary positions are scaled for longer texts.
#include "tests/app/program_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace keyhole::test_info_command {
namespace {

using Json = nlohmann::json;

class InfoCommand : public testing::ProgramRun {
  protected:
    /// Returns what info says of the tiny model with this scaling.
    std::string said_of(const Json& scaling) {
        const std::string file = (tiny_.folder() / "config.json").string();
        std::ifstream in(file);
        Json config = Json::parse(in);
        config["rope_scaling"] = scaling;
        std::ofstream(file) << config.dump();
        EXPECT_EQ(run("info --model '" + tiny_.folder().string() + "'"), 0) << output_;
        return output_;
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

TEST_F(InfoCommand, NamesTheScalingOfPositions) {
    const std::string plain = said_of(nullptr);
    EXPECT_NE(plain.find("rotary positions over"), std::string::npos) << plain;
    EXPECT_EQ(plain.find("scal"), std::string::npos) << plain;
    EXPECT_NE(said_of({{"rope_type", "linear"}, {"factor", 4.0}}).find(", linear scaling by 4"),
              std::string::npos)
        << output_;
    EXPECT_NE(
        said_of({{"rope_type", "dynamic"}, {"factor", 2.0}}).find(", dynamic scaling by 2 in texts beyond "),
        std::string::npos)
        << output_;
    // The fastest pair turns once in 2 pi tokens and stays; the slowest is divided by the factor.
    EXPECT_NE(said_of({{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}})
                  .find(", frequencies scaled by wavelength, divided by 1 to 8 "),
              std::string::npos)
        << output_;
    EXPECT_NE(said_of({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}})
                  .find("rotated values times 1.139"),
              std::string::npos)
        << "0.1 ln 4 + 1; " << output_;
}

}  // namespace
}  // namespace keyhole::test_info_command
