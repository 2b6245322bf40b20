// What the status line says of a run on a device, which is the host. Needs a display.
#include "tests/window/window_run.h"

#include <cstdlib>

namespace keyhole::test_status_line {
namespace {

class StatusLine : public testing::WindowRun {
  protected:
    void SetUp() override {
        WindowRun::SetUp();
        ::setenv("KEYHOLE_CUDA_MODULE", reference::built("libkeyhole_host_cuda.so").c_str(), 1);
        ::setenv("KEYHOLE_TEST_DEVICE", "driver:0.0", 1);
    }
    void TearDown() override {
        ::unsetenv("KEYHOLE_TEST_DEVICE");
        ::unsetenv("KEYHOLE_CUDA_MODULE");
        WindowRun::TearDown();
    }
    /// Rests the pointer on what stands at the line's right end. Returns whether that shows a tooltip.
    bool has_tip(const std::string& precision) {
        std::ofstream(path("script.txt"))
            << "wait idle\npoint status run\nwait seconds 0.3\npoint tooltip\nquit\n";
        const int status = run("gui --model '" + testing::kModel +
                               "' --prompt 'Once upon a time' --lane full --backend cuda --precision " +
                               precision + " --size 1280x720 --script '" + path("script.txt") + "'");
        EXPECT_TRUE(status == 0 || output_.find("tooltip") != std::string::npos) << output_;
        return status == 0;
    }
};

TEST_F(StatusLine, TellsWhatThePrecisionOfTheWeightsChanges) {
    EXPECT_TRUE(has_tip("weights")) << output_;
    EXPECT_FALSE(has_tip("float"));
}

}  // namespace
}  // namespace keyhole::test_status_line
