// The proof of a CUDA device on first use, with a module whose device is the host: it passes; one kernel
// gives wrong numbers; a kernel hangs; the process crashes; results differ from run to run; memory is lost;
// the verdict is stale. And what `--backend auto`, `selftest` and the window make of it.
#include "app/actions/action_table.h"
#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/device/prover.h"
#include "tests/app/program_run.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"
#include "tests/reference/wakes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>

namespace keyhole::test_device_proof {
namespace {

namespace fs = std::filesystem;

class DeviceProofTest : public testing::ProgramRun {
  protected:
    void SetUp() override {  // needs no display
        folder_ = fs::temp_directory_path() / ("keyhole-proof-test-" + std::to_string(::getpid()));
        fs::create_directories(folder_);
        ::setenv("KEYHOLE_CUDA_MODULE", reference::built("libkeyhole_host_cuda.so").c_str(), 1);
        ::setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
    }
    void TearDown() override {
        ::unsetenv("KEYHOLE_TEST_DEVICE");
        ::unsetenv("KEYHOLE_CUDA_MODULE");
        ::unsetenv("XDG_CACHE_HOME");
        ProgramRun::TearDown();
    }
    static void set_fault(const std::string& fault) { ::setenv("KEYHOLE_TEST_DEVICE", fault.c_str(), 1); }

    ProofSetup setup() const {
        ProofSetup setup = proof_setup(0);
        setup.program = reference::built("keyhole");
        return setup;
    }
    DeviceVerdict prove(const ProofSetup& of) {
        parts_.clear();
        return prove_device(of, [this](double, const std::string& what) {
            if (!what.empty() && (parts_.empty() || parts_.back() != what)) parts_.push_back(what);
            return true;
        });
    }
    /// Keeps a verdict without a proof, which takes seconds.
    void keep(bool passed, const std::string& reason = "",
              const std::string& step = R"({"device":0.25,"cpu":4.5})") {
        set_fault("driver:0.0");
        ProofSetup of = setup();
        of.program = path("prover.sh");
        std::ofstream(of.program) << "#!/bin/sh\n"
                                  << "echo 'proof device {\"name\":\"faulty\",\"uuid\":\"GPU-of-tests\","
                                     "\"driver\":\"0.0\"}'\n"
                                  << "echo 'proof part 500 half of it'\n"
                                  << "while [ \"$1\" != --proof ]; do shift; done\n"
                                  << "echo '{\"version\":" << kProofVersion
                                  << ",\"passed\":" << (passed ? "true" : "false") << ",\"step_ms\":" << step
                                  << ",\"reason\":\"" << reason << "\",\"lines\":[]}' > \"$2\"\n";
        fs::permissions(of.program, fs::perms::owner_all);
        of.again = true;
        ASSERT_EQ(prove(of).passed, passed);
    }
    std::unique_ptr<Backend> automatic(std::function<bool(double, const std::string&)> prove = {}) {
        BackendOptions options;
        options.n_threads = 1;
        options.prove = std::move(prove);
        return make_backend(load_model(tiny_.folder()), options, &notice_);
    }
    std::vector<fs::path> kept() const {
        std::vector<fs::path> files;
        std::error_code error;
        for (const auto& entry : fs::directory_iterator(folder_ / "keyhole" / "proofs", error))
            files.push_back(entry.path());
        return files;
    }

    reference::TinyModel tiny_{reference::TinyShape{}};
    std::vector<std::string> parts_;
    std::string notice_;
};

TEST_F(DeviceProofTest, PassesOnceAndIsKept) {
    const DeviceVerdict first = prove(setup());
    EXPECT_TRUE(first.passed) << first.reason;
    EXPECT_TRUE(first.is_new);
    EXPECT_EQ(first.device.uuid, "GPU-of-tests");
    EXPECT_GT(first.lines.size(), 100u);
    for (const char* what : {"logits of full", "kept tokens of tova:budget=40", "rewind",
                             "other bits the second time", "memory", "MB lost in every run"})
        EXPECT_TRUE(std::any_of(first.lines.begin(), first.lines.end(), [&](const SelfTestLine& line) {
            return line.kernel == what && line.passed;
        })) << what;
    EXPECT_TRUE(std::any_of(parts_.begin(), parts_.end(), [](const std::string& part) {
        return part.find("tiny model") != std::string::npos;
    }));
    ASSERT_EQ(kept().size(), 1u);
    EXPECT_EQ(first.report, kept()[0]);

    const DeviceVerdict again = prove(setup());
    EXPECT_TRUE(again.passed);
    EXPECT_FALSE(again.is_new);
    EXPECT_TRUE(parts_.empty() || parts_.back() != "1000 the end");
    EXPECT_EQ(again.lines.size(), first.lines.size());

    // This device is the CPU, thread by thread: `auto` takes the CPU and says why.
    ASSERT_TRUE(first.step && again.step);
    EXPECT_GT(first.step->device_ms, first.step->cpu_ms);
    EXPECT_GT(first.step->cpu_ms, 0);
    EXPECT_EQ(again.step->device_ms, first.step->device_ms);
    EXPECT_TRUE(automatic()->name().starts_with("cpu"));
    EXPECT_TRUE(std::regex_match(
        notice_, std::regex("failing passed its proof, but is not faster: a step of its model takes "
                            "[0-9.e+]+ ms there and [0-9.e+]+ ms on the CPU; --backend cuda takes it all the "
                            "same; using the CPU")))
        << notice_;
}

TEST_F(DeviceProofTest, AutoTakesWhatIsFaster) {
    keep(true);
    EXPECT_EQ(automatic()->name(), "cuda, faulty") << notice_;
    EXPECT_EQ(notice_, "");
    keep(true, "", R"({"device":40.1,"cpu":4.5})");
    EXPECT_TRUE(automatic()->name().starts_with("cpu"));
    EXPECT_EQ(notice_,
              "faulty passed its proof, but is not faster: a step of its model takes 40 ms there and 4.5 ms "
              "on the CPU; --backend cuda takes it all the same; using the CPU");
    keep(true, "", R"({"device":4.5,"cpu":4.5})");
    EXPECT_TRUE(automatic()->name().starts_with("cpu"));
    // A proof just now says both numbers where the device is taken too.
    fs::remove_all(folder_ / "keyhole");
    set_fault("fast");
    EXPECT_EQ(automatic([](double, const std::string&) { return true; })->name(), "cuda, faulty") << notice_;
    EXPECT_TRUE(std::regex_match(
        notice_, std::regex("faulty passed its proof in [0-9.]+ s; a step of its model takes [0-9.e-]+ ms "
                            "there and [0-9.e+-]+ ms on the CPU")))
        << notice_;
}

TEST_F(DeviceProofTest, AVerdictWithoutATimedStepIsStale) {
    keep(true);
    ASSERT_EQ(kept().size(), 1u);
    auto json = nlohmann::json::parse(read_text_file(kept()[0]));
    ASSERT_TRUE(json.contains("step_ms"));
    json.erase("step_ms");
    write_text_file(kept()[0], json.dump());
    EXPECT_FALSE(any_device_taken(setup()));
    EXPECT_FALSE(kept_verdict(setup(), {"faulty", "GPU-of-tests", "0.0"}));
    EXPECT_TRUE(automatic()->name().starts_with("cpu"));
    EXPECT_NE(notice_.find("has not passed its proof yet"), std::string::npos) << notice_;
    // What failed needs no time.
    json["passed"] = false;
    json["reason"] = "of old";
    write_text_file(kept()[0], json.dump());
    EXPECT_TRUE(automatic()->name().starts_with("cpu"));
    EXPECT_NE(notice_.find("faulty failed its proof: of old"), std::string::npos) << notice_;
}

TEST_F(DeviceProofTest, NamesTheKernelThatGivesWrongNumbers) {
    set_fault("wrong:FoldRow<Fp16>");
    const DeviceVerdict verdict = prove(setup());
    EXPECT_FALSE(verdict.passed);
    EXPECT_TRUE(verdict.is_new);
    EXPECT_EQ(verdict.reason.find("FoldRow<Fp16> (1 to 601 slots, head size 16 to 128, f16) is off by "), 0u)
        << verdict.reason;
    EXPECT_NE(verdict.reason.find("is allowed"), std::string::npos) << verdict.reason;
    const std::string report = read_text_file(verdict.report);
    EXPECT_NE(report.find("FoldRow<Fp16>"), std::string::npos);
    EXPECT_NE(report.find("GPU-of-tests"), std::string::npos);

    // `auto` takes the CPU and says why; it does not prove again. `cuda` takes the device all the same.
    bool proved = false;
    EXPECT_TRUE(
        automatic([&](double, const std::string& what) { return proved = proved || !what.empty(), true; })
            ->name()
            .starts_with("cpu"));
    EXPECT_FALSE(proved);
    EXPECT_NE(notice_.find("faulty failed its proof: FoldRow<Fp16>"), std::string::npos) << notice_;
    EXPECT_NE(notice_.find(verdict.report.string()), std::string::npos) << notice_;
    EXPECT_NE(notice_.find("--backend cuda takes it all the same; using the CPU"), std::string::npos)
        << notice_;
    BackendOptions cuda;
    cuda.choice = BackendChoice::cuda;
    EXPECT_EQ(make_backend(load_model(tiny_.folder()), cuda, nullptr)->name(), "cuda, faulty");

    // The program says the same; the next start reads it from the cache folder.
    ASSERT_EQ(run("decode --model '" + tiny_.folder().string() + "' --prompt ab --tokens 2 --backend auto"),
              0)
        << output_;
    EXPECT_NE(output_.find("FoldRow<Fp16> (1 to 601 slots, head size 16 to 128, f16) is off by"),
              std::string::npos)
        << output_;
}

TEST_F(DeviceProofTest, StopsAKernelThatHangs) {
    set_fault("hang:SoftmaxTile");
    ProofSetup of = setup();
    of.silence = std::chrono::seconds(4);
    const DeviceVerdict verdict = prove(of);
    EXPECT_FALSE(verdict.passed);
    EXPECT_NE(verdict.reason.find("it hung at SoftmaxTile, rows 171 to 203 of 300 and was stopped after"),
              std::string::npos)
        << verdict.reason;
    EXPECT_TRUE(fs::exists(verdict.report));
    // The verdict on the device is kept: no second hang.
    of.silence = std::chrono::hours(1);
    EXPECT_FALSE(prove(of).is_new);
}

/// Such a device cannot even say what it is. The verdict holds until the next start of the machine.
TEST_F(DeviceProofTest, StopsADeviceThatNeverOpens) {
    set_fault("hang:open");
    ProofSetup of = setup();
    of.silence = std::chrono::seconds(1);
    const DeviceVerdict verdict = prove(of);
    EXPECT_FALSE(verdict.passed);
    EXPECT_TRUE(verdict.available);
    EXPECT_EQ(verdict.reason.find("it hung when the device was opened and was stopped after"), 0u)
        << verdict.reason;
    EXPECT_TRUE(verdict.device.uuid.empty());
    of.silence = std::chrono::hours(1);
    EXPECT_FALSE(prove(of).is_new);
    EXPECT_TRUE(automatic([](double, const std::string&) { return true; })->name().starts_with("cpu"));
    EXPECT_NE(notice_.find("the CUDA device failed its proof: it hung"), std::string::npos) << notice_;
}

/// A driver that compiles PTX is silent for minutes, and works.
TEST_F(DeviceProofTest, WaitsForADriverThatCompiles) {
    set_fault("compile:open");
    ProofSetup of = setup();
    of.silence = std::chrono::seconds(3);
    std::set<std::string> parts;
    const auto until_it_opens = [&](double, const std::string& part) {
        parts.insert(part);
        return part.empty() || part.starts_with("the driver") || part.starts_with("the start");
    };
    EXPECT_THROW(prove_device(of, until_it_opens), Error);  // stopped by us: the rest is as on any device
    EXPECT_EQ(parts.count("the driver compiles the kernels for this device; this happens once"), 1u);
    EXPECT_TRUE(kept().empty());
}

TEST_F(DeviceProofTest, KeepsNoVerdictOnADriverThatStillCompiles) {
    set_fault("compile:open");
    ProofSetup of = setup();
    of.most = std::chrono::seconds(5);
    const DeviceVerdict verdict = prove(of);
    EXPECT_FALSE(verdict.passed);
    EXPECT_EQ(verdict.reason.find("its driver had not compiled the kernels after 5"), 0u) << verdict.reason;
    EXPECT_TRUE(kept().empty());
}

TEST_F(DeviceProofTest, FailsADeviceThatMakesNoGraphs) {
    set_fault("nograph");
    const DeviceVerdict verdict = prove(setup());
    EXPECT_FALSE(verdict.passed);
    EXPECT_TRUE(std::regex_search(
        verdict.reason, std::regex("^graphs \\(steps of the tiny model\\): 0 of [1-9][0-9]* steps ran as "
                                   "a graph; the device failed to make [1-9]")))
        << verdict.reason;
}

TEST_F(DeviceProofTest, SurvivesACrash) {
    set_fault("crash:CompactHead<Bf16>");
    const DeviceVerdict verdict = prove(setup());
    EXPECT_FALSE(verdict.passed);
    EXPECT_NE(verdict.reason.find("the process crashed (signal 11) at CompactHead<Bf16>"), std::string::npos)
        << verdict.reason;
    EXPECT_FALSE(prove(setup()).is_new);
}

TEST_F(DeviceProofTest, FindsResultsThatDifferFromRunToRun) {
    set_fault("flaky");
    const DeviceVerdict verdict = prove(setup());
    EXPECT_FALSE(verdict.passed);
    EXPECT_EQ(verdict.reason.find("other bits the second time"), 0u) << verdict.reason;
}

TEST_F(DeviceProofTest, FindsMemoryThatDoesNotComeBack) {
    set_fault("leak");
    const DeviceVerdict verdict = prove(setup());
    EXPECT_FALSE(verdict.passed);
    EXPECT_EQ(verdict.reason.find("memory (64 MB taken and freed) is off by 1.0e+00"), 0u) << verdict.reason;
}

TEST_F(DeviceProofTest, KeepsNoVerdictWithoutADevice) {
    set_fault("none");
    const DeviceVerdict verdict = prove(setup());
    EXPECT_FALSE(verdict.passed);
    EXPECT_FALSE(verdict.available);
    EXPECT_EQ(text_of(verdict), "there is no CUDA device");
    EXPECT_TRUE(kept().empty());
    EXPECT_TRUE(automatic([](double, const std::string&) { return true; })->name().starts_with("cpu"));
    EXPECT_EQ(notice_, "there is no CUDA device; using the CPU");
}

TEST_F(DeviceProofTest, AVerdictHoldsForOneDriverAndOneModule) {
    keep(true);
    EXPECT_TRUE(any_device_taken(setup()));
    EXPECT_EQ(automatic()->name(), "cuda, faulty") << notice_;
    set_fault("driver:0.1");
    EXPECT_TRUE(automatic()->name().starts_with("cpu"));
    EXPECT_EQ(notice_,
              "the CUDA device has not passed its proof yet (keyhole selftest --backend cuda runs it); using "
              "the CPU");
    set_fault("driver:0.0");
    EXPECT_EQ(automatic()->name(), "cuda, faulty") << notice_;

    // Another build of the module. What follows the end of a library does not matter to the loader.
    fs::copy_file(reference::built("libkeyhole_host_cuda.so"), path("other.so"));
    std::ofstream(path("other.so"), std::ios::app) << "another build";
    ::setenv("KEYHOLE_CUDA_MODULE", path("other.so").c_str(), 1);
    EXPECT_FALSE(any_device_taken(setup()));
    EXPECT_TRUE(automatic()->name().starts_with("cpu"));
}

TEST_F(DeviceProofTest, ADamagedVerdictIsNone) {
    static_assert(kProofVersion == 3);  // as below
    keep(true);
    ASSERT_EQ(kept().size(), 1u);
    for (const char* text :
         {"", "{}", "[]", "{\"version\":3,\"passed\":\"yes\"}",
          "{\"version\":99,\"passed\":true,\"step_ms\":{\"device\":1,\"cpu\":2}}",
          "{\"version\":3,\"passed\":true,\"step_ms\":{\"device\":1,\"cpu\":2},\"lines\":7}",
          "{\"version\":3,\"passed\":true,\"step_ms\":{\"device\":1}}",
          "{\"version\":3,\"passed\":true,\"step_ms\":\"fast\"}"}) {
        write_text_file(kept()[0], text);
        EXPECT_TRUE(automatic()->name().starts_with("cpu")) << text;
    }
}

TEST_F(DeviceProofTest, RunsWhenItIsAskedFor) {
    keep(false, "of old");
    EXPECT_TRUE(automatic()->name().starts_with("cpu"));
    EXPECT_NE(notice_.find("faulty failed its proof: of old"), std::string::npos) << notice_;
    keep(true);
    EXPECT_EQ(automatic()->name(), "cuda, faulty");
}

TEST_F(DeviceProofTest, IsStoppedByItsProgress) {
    set_fault("hang:AddNorm");
    try {
        prove_device(setup(), [](double, const std::string& what) { return what.empty(); });
        FAIL() << "it went on";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::cancelled);
    }
    EXPECT_TRUE(kept().empty());
}

TEST_F(DeviceProofTest, SaysWhatAProgramWithoutTheCommandDoes) {
    ProofSetup of = setup();
    of.program = path("nothing");
    EXPECT_THROW(prove(of), Error);
    of.program = "/bin/false";
    const DeviceVerdict verdict = prove(of);
    EXPECT_FALSE(verdict.passed);
    EXPECT_NE(verdict.reason.find("ended with status 1 when the device was opened"), std::string::npos)
        << verdict.reason;
}

TEST_F(DeviceProofTest, SelftestShowsIt) {
    ASSERT_EQ(run("selftest --backend cuda"), 0) << output_;
    EXPECT_NE(output_.find("failing, driver 0.0\nkernel "), std::string::npos) << output_;
    EXPECT_NE(output_.find("failing passed its proof in "), std::string::npos) << output_;
    EXPECT_NE(output_.find(" ms on the CPU; --backend auto takes the CPU\n"), std::string::npos) << output_;
    set_fault("crash:Embed<float>");
    ASSERT_EQ(run("selftest --json"), 1) << output_;
    const auto json = nlohmann::json::parse(
        output_.substr(output_.find("{\n"), output_.rfind("}\n") + 2 - output_.find("{\n")));
    EXPECT_EQ(json.at("passed"), false);
    EXPECT_EQ(json.at("device"), "faulty");
    EXPECT_NE(
        output_.find("selftest: faulty failed its proof: the process crashed (signal 11) at Embed<float>"),
        std::string::npos)
        << output_;
    set_fault("none");
    ASSERT_EQ(run("selftest"), 1);
    EXPECT_EQ(output_,
              "keyhole: selftest: there is no CUDA device; --backend cpu runs the kernels on the host\n");
}

TEST_F(DeviceProofTest, BenchCountsTheHostsPart) {
    ASSERT_EQ(run("bench --shape pythia-160m --executor none --context 64 --tokens 8 --instrument --json"), 0)
        << output_;
    const auto lanes = nlohmann::json::parse(output_).at("lanes");
    ASSERT_EQ(lanes.size(), 2u);
    EXPECT_EQ(lanes[1].at("spec"), "full +rows");
    EXPECT_GT(lanes[0].at("host_ms_per_step").get<double>(), 0);
    EXPECT_LE(lanes[0].at("launches_per_layer").get<double>(), 10);
    EXPECT_EQ(lanes[0].at("new_graphs"), 0);
    EXPECT_EQ(run("bench --executor none"), 2);
    EXPECT_NE(output_.find("--executor none needs --shape"), std::string::npos) << output_;
}

/// Single launches take microseconds each: times without graphs must not pass for the kernels' own.
TEST_F(DeviceProofTest, BenchSaysHowManyStepsRanAsAGraph) {
    const std::string command = "bench --model '" + tiny_.folder().string() +
                                "' --backend cuda --context 20 --tokens 6 --rounds 1 --lane full";
    set_fault("driver:0.0");  // all is well with it
    ASSERT_EQ(run(command), 0) << output_;
    EXPECT_TRUE(
        std::regex_search(output_, std::regex("\n([1-9][0-9]*) of \\1 steps that repeated ran as a graph\n")))
        << output_;
    set_fault("nograph");
    ASSERT_EQ(run(command), 0) << output_;
    EXPECT_TRUE(std::regex_search(
        output_,
        std::regex("\n0 of [1-9][0-9]* steps that repeated ran as a graph; THE DEVICE FAILED TO MAKE "
                   "[1-9][0-9]*, so these times are those of single launches\n")))
        << output_;
    ASSERT_EQ(run(command + " --json"), 0) << output_;
    const auto graphs = nlohmann::json::parse(output_.substr(output_.find("{\n"))).at("graphs");
    EXPECT_EQ(graphs.at("graphs"), 0);
    EXPECT_GT(graphs.at("failed").get<int>(), 0);
}

/// Random weights and papers' tables say what a model's bench says of precision and graphs.
TEST_F(DeviceProofTest, BenchOfShapesAndPapersSaysTheSame) {
    set_fault("fast");
    const std::string small = " --backend cuda --layers 1 --tokens 6 --rounds 1 --precision ",
                      shape = "bench --shape pythia-160m --context 8" + small,
                      paper = "bench --paper mlkv-figure3 --scale 256 --scale-batch 64 --json" + small,
                      note = "prompts are computed in f16, as the weights";
    ASSERT_EQ(run(shape + "weights"), 0) << output_;
    EXPECT_NE(output_.find(note), std::string::npos) << output_;
    EXPECT_TRUE(
        std::regex_search(output_, std::regex("\n([1-9][0-9]*) of \\1 steps that repeated ran as a graph\n")))
        << output_;
    ASSERT_EQ(run(shape + "float"), 0) << output_;
    EXPECT_EQ(output_.find(note), std::string::npos) << output_;
    ASSERT_EQ(run(paper + "weights"), 0) << output_;
    EXPECT_NE(output_.find(note), std::string::npos) << output_;
    EXPECT_EQ(output_.find(note), output_.rfind(note)) << "once for all models: " << output_;
    const auto group = nlohmann::json::parse(output_.substr(output_.find("{\n"))).at("groups").at(0);
    EXPECT_GT(group.at("graphs").at("graphs").get<int>(), 0);
    EXPECT_EQ(group.at("graphs").at("failed"), 0);
}

/// The window's state: the proof runs beside a run on the CPU, which then starts again on the device.
class DeviceInTheWindow : public DeviceProofTest {
  protected:
    void SetUp() override {
        DeviceProofTest::SetUp();
        app_ = std::make_unique<AppState>(BackendOptions{}, wakes_.callback());
        app_->run.setup.model_folder = tiny_.folder();
        app_->run.setup.prompt = "The cat sat on the mat.";
        app_->run.setup.lanes = {parse_lane_spec("full"), parse_lane_spec("h2o:budget=12")};
    }
    void TearDown() override {
        app_.reset();
        DeviceProofTest::TearDown();
    }
    void settle() {
        ASSERT_TRUE(wakes_.wait_until([&] {
            app_->refresh();
            app_->maps.complete = true;
            return app_->idle();
        })) << app_->run.status.message;
    }
    using News = AppState::DeviceStrip;
    reference::Wakes wakes_;
    std::unique_ptr<AppState> app_;
};

TEST_F(DeviceInTheWindow, OffersTheDeviceThatPassed) {
    set_fault("fast");
    app_->start();
    settle();
    EXPECT_TRUE(app_->run.status.backend.starts_with("cpu")) << app_->run.status.backend;
    EXPECT_THROW(run_action(*app_, "device.use"), Error);
    app_->prove_device_once();
    bool was_proving = false;
    ASSERT_TRUE(wakes_.wait_until([&] {
        app_->refresh();
        was_proving = was_proving || app_->device_strip() == News::proving;
        return !app_->device_proof.running();
    }));
    EXPECT_TRUE(was_proving);
    ASSERT_EQ(app_->device_strip(), News::passed) << app_->device_proof.fault();
    run_action(*app_, "device.use");
    settle();
    EXPECT_EQ(app_->run.status.backend, "cuda, faulty") << app_->run.status.message;
    EXPECT_EQ(app_->device_strip(), News::none);
    run_action(*app_, "step 3");
    settle();
    EXPECT_EQ(app_->run.n_decoded(), 3);

    // An export replays the run on the run's own backend.
    EXPECT_NE(app_->run.job_backend().of_run, nullptr);
    run_action(*app_, "file.export " + path("out"));
    settle();
    EXPECT_TRUE(fs::exists(path("out/run.json"))) << app_->notice.text;

    // The next window takes it from the start, and its proof is over at once.
    app_ = std::make_unique<AppState>(BackendOptions{}, wakes_.callback());
    app_->run.setup.model_folder = tiny_.folder();
    app_->run.setup.prompt = "The cat sat on the mat.";
    app_->run.setup.lanes = {parse_lane_spec("full")};
    app_->start();
    app_->prove_device_once();
    settle();
    EXPECT_EQ(app_->run.status.backend, "cuda, faulty");
    EXPECT_FALSE(app_->device_proof.verdict()->is_new);
    EXPECT_EQ(app_->device_strip(), News::none);
}

TEST_F(DeviceInTheWindow, DoesNotOfferASlowerDevice) {
    keep(true, "", R"({"device":40.1,"cpu":4.5})");
    app_->start();
    app_->prove_device_once();
    settle();
    ASSERT_NE(app_->device_proof.verdict(), nullptr);
    EXPECT_TRUE(app_->device_proof.verdict()->passed);
    EXPECT_EQ(app_->device_strip(), News::none);
    const std::string error = [&] {
        try {
            run_action(*app_, "device.use");
        } catch (const Error& refused) {
            return std::string(refused.what());
        }
        return std::string();
    }();
    EXPECT_NE(error.find("takes 40 ms there and 4.5 ms on the CPU"), std::string::npos) << error;
    EXPECT_TRUE(app_->run.status.backend.starts_with("cpu"));
}

TEST_F(DeviceInTheWindow, SaysWhatFailedAndStaysOnTheCpu) {
    set_fault("crash:AddNorm");
    app_->start();
    run_action(*app_, "device.prove");
    settle();
    EXPECT_EQ(app_->device_strip(), News::failed);
    EXPECT_NE(app_->device_proof.verdict()->reason.find("signal 11"), std::string::npos);
    EXPECT_TRUE(app_->run.status.backend.starts_with("cpu"));
    EXPECT_THROW(run_action(*app_, "device.use"), Error);
    run_action(*app_, "device.close");
    EXPECT_EQ(app_->device_strip(), News::none);
}

TEST_F(DeviceInTheWindow, AProofCanBeStopped) {
    set_fault("hang:AddNorm");
    app_->start();
    run_action(*app_, "device.prove");
    ASSERT_TRUE(wakes_.wait_until([&] {
        app_->refresh();
        return app_->device_strip() == News::proving;
    }));
    EXPECT_THROW(run_action(*app_, "device.prove"), Error);
    run_action(*app_, "device.close");
    settle();
    EXPECT_EQ(app_->device_strip(), News::none);
    EXPECT_EQ(app_->device_proof.verdict(), nullptr);
    EXPECT_TRUE(kept().empty());
}

TEST_F(DeviceInTheWindow, ProvesNothingOfItselfForAChosenBackend) {
    app_ = std::make_unique<AppState>(BackendOptions{BackendChoice::cpu, 1, 0}, wakes_.callback());
    app_->prove_device_once();
    EXPECT_FALSE(app_->device_proof.running());
}

}  // namespace
}  // namespace keyhole::test_device_proof
