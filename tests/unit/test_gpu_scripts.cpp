// What a first session on a GPU begins with, as far as no GPU is needed: sizes of what is copied, the calls
// that the manual names, the look at machine code; and what the README says of CUDA.
#include "engine/base/mapped_file.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <string>

namespace keyhole::test_gpu_scripts {
namespace {

namespace fs = std::filesystem;

class GpuScripts : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = fs::temp_directory_path() / ("keyhole-gpu-scripts-" + std::to_string(::getpid()));
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }

    /// Runs a command in the folder. Its output is in output_.
    int run(const std::string& command) {
        const int status =
            std::system(("cd '" + folder_.string() + "' && (" + command + ") > out.txt 2>&1").c_str());
        output_ = read_text_file(folder_ / "out.txt");
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    void make(const std::string& name, const std::string& text) {
        fs::create_directories((folder_ / name).parent_path());
        write_text_file(folder_ / name, text);
    }
    void make_large(const std::string& name, std::uintmax_t megabytes) {
        make(name, "");
        fs::resize_file(folder_ / name, megabytes * 1'000'000);
    }

    const fs::path source_ = reference::source_folder();
    fs::path folder_;
    std::string output_;
};

TEST_F(GpuScripts, ABoxThatDoesNotFitBesideTheTreeSaysWhatToLeaveOut) {
    if (run("git init -q tree && cd tree && mkdir -p tests/gpu && cp '" +
            (source_ / "tests/gpu/first_run.sh").string() + "' tests/gpu") != 0)
        GTEST_SKIP() << "no git: " << output_;
    make_large("tree/data", 40);
    for (const char* model : {"keyhole-base", "keyhole-mqa", "keyhole-mlkv2"})
        make_large(std::string("tree/assets/models/") + model + "/weights", 7);
    const auto fits = [&](int megabytes) {
        make_large("box.tar.xz", static_cast<std::uintmax_t>(megabytes));
        return run("tree/tests/gpu/first_run.sh --fits \"$PWD/box.tar.xz\"");
    };
    EXPECT_EQ(fits(6), 0) << output_;
    EXPECT_TRUE(std::regex_search(output_, std::regex("box.tar.xz takes 6.0 MB and the working tree 61.0 MB: "
                                                      "together 67.0 MB of 67.1 MB\n$")))
        << output_;
    EXPECT_EQ(fits(8), 1);
    EXPECT_NE(output_.find("that is 1.9 MB more than is copied to a box\n"), std::string::npos) << output_;
    EXPECT_NE(output_.find("copy a tree without assets/models/keyhole-mqa: the one"), std::string::npos)
        << output_;
    EXPECT_EQ(fits(18), 1);
    EXPECT_NE(output_.find("copy a tree without assets/models/keyhole-mqa assets/models/keyhole-mlkv2: the"),
              std::string::npos)
        << output_;
    EXPECT_EQ(fits(30), 1);
    EXPECT_NE(output_.find("without the other demo models it is still 9.9 MB too much"), std::string::npos)
        << output_;
    EXPECT_EQ(run("rm -r tree/assets/models/keyhole-m* && tree/tests/gpu/first_run.sh --fits box.tar.xz"), 1);
    EXPECT_NE(output_.find("the working tree 47.0 MB"), std::string::npos) << output_;
}

/// Returns the calls of first_run.sh in a text, without what a line says beside them.
std::set<std::string> calls_in(const std::string& text) {
    const std::regex call("tests/gpu/first_run\\.sh( --(build-only|(build|part) [a-z0-9/.]+|alone))+");
    return {std::sregex_token_iterator(text.begin(), text.end(), call), std::sregex_token_iterator()};
}

TEST_F(GpuScripts, TheManualHasTheCallsOfTheScript) {
    const std::string script = read_text_file(source_ / "tests/gpu/first_run.sh"),
                      manual = read_text_file(source_ / "assets/manual/cuda.md");
    const std::set<std::string> calls = calls_in(manual);
    EXPECT_EQ(calls.size(), 6u);
    EXPECT_EQ(calls, calls_in(script.substr(0, script.find("set -uo pipefail"))));
    for (const std::string& of : calls) {
        const std::size_t part = of.find("--part ");
        if (part == std::string::npos) continue;
        const std::string name = of.substr(part + 7, of.find(' ', part + 7) - part - 7);
        EXPECT_NE(script.find("\nrun_" + name + "() {"), std::string::npos) << of;
    }
}

TEST_F(GpuScripts, RefusesWhatItDoesNotKnow) {
    const std::string script = "'" + (source_ / "tests/gpu/first_run.sh").string() + "' ";
    EXPECT_EQ(run(script + "--part everything"), 2);
    EXPECT_NE(output_.find("--part: checks, bench, profile, papers, products"), std::string::npos);
    EXPECT_EQ(run(script + "--quickly"), 2);
}

/// Loads of quantised weights have 8 to 32 bits: 64 bytes of them in flight, in a loop for each of 11 types.
TEST_F(GpuScripts, MachineCodeShowsQuantisedLoads) {
    const auto kernel = [](const std::string& name, const std::string& load, int n_loads, int n_loops) {
        std::string text = "Function : " + name + "\n";
        for (int loop = 0; loop < n_loops; ++loop) {
            for (int i = 0; i < n_loads; ++i) text += "/*0010*/ " + load + " R1, desc[UR4][R2.64] ;\n";
            text += "/*0020*/ LDS.128 R4, [R5] ;\n";
            for (int i = 0; i < 8; ++i) text += "/*0030*/ FFMA R1, R2, R3, R1 ;\n";
        }
        return text;
    };
    const auto check = [&](const std::string& sass) {
        make("sass.txt", sass);
        make("cuobjdump", "#!/bin/sh\ncat sass.txt\n");
        fs::permissions(folder_ / "cuobjdump", fs::perms::owner_all);
        return run("CUOBJDUMP=./cuobjdump '" + (source_ / "tests/gpu/check_sass.sh").string() + "' module");
    };
    const std::string name = "MatrixVectorINS0_6StoredELi1E";
    EXPECT_EQ(check(kernel(name, "LDG.E.CONSTANT", 16, 11)), 0) << output_;
    EXPECT_EQ(check(kernel(name, "LDG.E.U16.CONSTANT", 32, 11)), 0) << output_;
    EXPECT_EQ(check(kernel(name, "LDG.E.CONSTANT", 16, 10)), 1) << "one type has no such loop";
    EXPECT_NE(output_.find("64 bytes in flight,  10 loops"), std::string::npos) << output_;
    EXPECT_EQ(check(kernel(name, "LDG.E.CONSTANT", 7, 11)), 1) << "28 bytes";
    EXPECT_EQ(check("Function : Embed\n"), 1) << "no kernel that it knows";

    // Products in integers: eight types, and for eight lanes codes that wait in registers while inputs are
    // stored.
    const auto integers = [](const std::string& of, const std::string& use, int n_loads, int n_loops,
                             int n_inputs = 3) {
        std::string text = "Function : " + of + "\n";
        for (int i = 0; i < n_inputs; ++i) text += "/*0008*/ LDG.E.128 R8, desc[UR4][R2.64] ;\n";
        text += "/*000c*/ STS.128 [R4], R8 ;\n";
        for (int loop = 0; loop < n_loops; ++loop) {
            for (int i = 0; i < n_loads; ++i) text += "/*0010*/ LDG.E.CONSTANT R1, desc[UR4][R2.64] ;\n";
            if (use == "IMMA.16832.S8.S8") text += "/*0020*/ STS.128 [R4], R5 ;\n";
            text += "/*0030*/ " + use + " R1, R2, R3, R1 ;\n";
        }
        return text;
    };
    EXPECT_EQ(check(integers("12LaidProductsILi1E", "IDP.4A.S8.U8", 16, 8)), 0) << output_;
    EXPECT_EQ(check(integers("12LaidProductsILi1E", "IDP.4A.S8.U8", 16, 7)), 1)
        << "one type has no such loop";
    EXPECT_EQ(check(integers("12LaidProductsILi1E", "IDP.4A.S8.U8", 15, 8)), 1) << "60 bytes";
    EXPECT_EQ(check(integers("9LaidTiles", "IMMA.16832.S8.S8", 16, 8)), 0) << output_;
    EXPECT_EQ(check(integers("9LaidTiles", "IMMA.16832.S8.S8", 16, 8, 2)), 1) << "32 bytes of inputs";
    EXPECT_EQ(check(integers("9LaidTiles", "IDP.4A.S8.U8", 16, 8)), 1) << "not on tensor cores";
}

/// One line of the README says on which device the kernels ran; the manual and the record name the same.
TEST_F(GpuScripts, TheReadmeSaysWhereCudaStands) {
    const std::string readme = read_text_file(source_ / "README.md");
    const std::string first_screen = readme.substr(0, readme.find("\n## Five steps"));
    const std::size_t at = first_screen.find("**CUDA**: ");
    ASSERT_NE(at, std::string::npos);
    const std::string said = first_screen.substr(at, first_screen.find("(`./run help cuda`)", at) - at);
    for (const std::string& text : {said, read_text_file(source_ / "assets/manual/cuda.md"),
                                    read_text_file(source_ / "tests/bench/results/2026-11-27-cuda-h200.txt")})
        EXPECT_NE(text.find("NVIDIA H200"), std::string::npos) << said;
}

}  // namespace
}  // namespace keyhole::test_gpu_scripts
