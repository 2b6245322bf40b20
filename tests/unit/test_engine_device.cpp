// The engine thread on a device, which the host stands in for. Runs with changes in mid-run equal the CPU's.
// Whatever device call fails, the session ends with its reason, its rows stay readable, and the next run
// starts fresh.
#include "engine/base/error.h"
#include "engine/live/engine.h"
#include "tests/reference/failing_executor.h"
#include "tests/reference/sanitizer.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"
#include "tests/reference/wakes.h"

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>

namespace reference::test_engine_device {
namespace {

using keyhole::EnginePhase;
using keyhole::EngineStatus;
using keyhole::parse_command;

class EngineOnDevice : public ::testing::Test {
  protected:
    explicit EngineOnDevice(int n_layers = 4)
        : tiny_({.n_layers = n_layers, .n_heads = 4, .n_kv_heads = 4, .n_ctx = 4096, .seed = 8}) {
        ::setenv("KEYHOLE_CUDA_MODULE", reference::built("libkeyhole_host_cuda.so").c_str(), 1);
        void* module = ::dlopen(reference::built("libkeyhole_host_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
        EXPECT_NE(module, nullptr);
        latest_ = reinterpret_cast<FailingExecutor* (*)()>(::dlsym(module, "keyhole_test_executor"));
    }
    ~EngineOnDevice() override { ::unsetenv("KEYHOLE_CUDA_MODULE"); }

    /// Returns the executor of the running backend. Use it only while the engine waits: its thread reads
    /// these fields at the next request.
    FailingExecutor& device() { return *latest_(); }

    static keyhole::BackendOptions on(keyhole::BackendChoice choice) { return {choice, 1, 0}; }
    static keyhole::RunSpec spec() {
        keyhole::RunSpec run = run_spec(random_text(19, 2), {"full", "h2o:budget=6"}, 60);
        run.ignore_eos = true;
        run.requested.attention = run.requested.scores = true;
        return run;
    }
    bool wait_for(const std::function<bool()>& condition) { return wakes_.wait_until(condition); }
    static int last_row(keyhole::Engine& engine) {
        const auto steps = engine.recorder().snapshot().steps;
        return steps.empty() ? -1 : steps.back()->row;
    }
    /// Returns whether every request so far has taken effect or was refused.
    static bool is_settled(const keyhole::Engine& engine, const EngineStatus& status) {
        return status.handled == engine.last_request();
    }
    static bool is_still(keyhole::Engine& engine) {
        const EngineStatus status = engine.status();
        return is_settled(engine, status) &&
               (status.phase == EnginePhase::idle || status.phase == EnginePhase::failed);
    }
    /// Requests rows or sends a command, waits, and returns the status message.
    std::string step(keyhole::Engine& engine, int n_rows) {
        const int wanted = last_row(engine) + n_rows;
        engine.step(n_rows);
        EXPECT_TRUE(wait_for([&] {
            return engine.status().phase == EnginePhase::failed ||
                   (last_row(engine) == wanted && is_still(engine));
        }));
        return engine.status().message;
    }
    std::string send(keyhole::Engine& engine, const char* command) {
        engine.send(parse_command(command));
        EXPECT_TRUE(wait_for([&] { return is_settled(engine, engine.status()); }));
        return engine.status().message;
    }
    void start(keyhole::Engine& engine) {
        engine.start(tiny_.folder(), spec());
        EXPECT_TRUE(wait_for([&] {
            return engine.status().phase == EnginePhase::failed ||
                   (last_row(engine) == 19 && engine.status().phase == EnginePhase::idle);
        })) << engine.status().message;
    }

    Wakes wakes_;
    TinyModel tiny_;

  private:
    FailingExecutor* (*latest_)() = nullptr;
};

TEST_F(EngineOnDevice, ChangesInMidRunGiveTheCpusResults) {
    std::vector<std::vector<int>> tokens;
    std::vector<std::vector<std::string>> kv;
    for (const keyhole::BackendChoice choice : {keyhole::BackendChoice::cpu, keyhole::BackendChoice::cuda}) {
        keyhole::Engine engine(on(choice), wakes_.callback());
        start(engine);
        EXPECT_EQ(engine.status().backend.starts_with("cuda"), choice == keyhole::BackendChoice::cuda)
            << engine.status().backend;
        step(engine, 4);
        EXPECT_EQ(send(engine, "lane 1 h2o:budget=6,kv=gqa:2"), "");
        step(engine, 3);
        EXPECT_EQ(send(engine, "fork 0 tova:budget=8,kv=(mlkv:m=2,g=1)"), "");
        step(engine, 4);
        EXPECT_EQ(send(engine, "rewind 26"), "");
        EXPECT_EQ(send(engine, "lane 1 h2o:budget=6"), "");
        step(engine, 5);
        tokens.emplace_back();
        kv.emplace_back();
        for (const auto& row : engine.recorder().snapshot().steps)
            for (const keyhole::LaneRecord& lane : row->lanes) {
                tokens.back().push_back(lane.predicted);
                kv.back().push_back(lane.info->kv);
            }
    }
    EXPECT_EQ(tokens[0], tokens[1]);
    EXPECT_EQ(kv[0], kv[1]);
    EXPECT_NE(std::find(kv[1].begin(), kv[1].end(), "gqa:2"), kv[1].end());
}

struct Failure {
    const char* name;
    int FailingExecutor::Fails::*which;
    int FailingExecutor::*calls;
    const char* reason;
};
constexpr Failure kFailures[] = {
    {"Launch", &FailingExecutor::Fails::launch, &FailingExecutor::n_launches, "a launch"},
    {"Copy", &FailingExecutor::Fails::copy, &FailingExecutor::n_copies, "a copy"},
    {"Wait", &FailingExecutor::Fails::wait, &FailingExecutor::n_waits, "an illegal address"}};

class EngineOnFailingDevice : public EngineOnDevice, public ::testing::WithParamInterface<Failure> {
  protected:
    // One layer makes every kind of device call, and this starts some sixty runs.
    EngineOnFailingDevice() : EngineOnDevice(1) {}
};

TEST_P(EngineOnFailingDevice, EndsTheSessionWithItsReason) {
    const Failure& failure = GetParam();
    using Request = std::function<void(keyhole::Engine&)>;
    const std::pair<std::string, Request> requests[] = {
        {"a step", [&](auto& engine) { step(engine, 2); }},
        {"a fork", [&](auto& engine) { send(engine, "fork 1 h2o:budget=4"); }},
        {"another policy", [&](auto& engine) { send(engine, "lane 1 keyformer:budget=4"); }},
        {"another sharing", [&](auto& engine) { send(engine, "lane 1 h2o:budget=6,kv=mqa"); }},
        {"an eviction", [&](auto& engine) { send(engine, "evict 0 3"); }},
        {"a rewind", [&](auto& engine) { send(engine, "rewind 21"); }},
        {"a prompt", [&](auto& engine) { start(engine); }},
        {"a token back", [&](auto& engine) {
             engine.request_counterfactual(1, 5);
             EXPECT_TRUE(wait_for([&] { return is_settled(engine, engine.status()); }));
         }}};
    /// Makes a request and returns the number of device calls; nth > 0: that call fails.
    const auto run = [&](const Request& request, int nth, bool keeps_rows) {
        keyhole::Engine engine(on(keyhole::BackendChoice::cuda), wakes_.callback());
        start(engine);
        step(engine, 4);
        EXPECT_EQ(engine.status().phase, EnginePhase::idle) << engine.status().message;
        const int before = device().*failure.calls;
        if (nth > 0) device().fails.*failure.which = before + nth;
        request(engine);
        const EngineStatus status = engine.status();
        if (nth == 0) {
            EXPECT_EQ(status.phase, EnginePhase::idle) << status.message;
            return device().*failure.calls - before;
        }
        EXPECT_EQ(status.phase, EnginePhase::failed);
        EXPECT_NE(status.message.find(failure.reason), std::string::npos) << status.message;
        // Recorded rows stay readable; the session does not continue.
        if (keeps_rows) {
            EXPECT_GE(last_row(engine), 23);
        }
        EXPECT_NE(send(engine, "fork 0 full").find("needs a running session"), std::string::npos);
        // The program goes on, and a new run has a new backend.
        engine.start(tiny_.folder(), spec());
        EXPECT_TRUE(wait_for([&] { return engine.status().phase == EnginePhase::idle; }));
        EXPECT_EQ(step(engine, 1), "");
        return 0;
    };
    for (const auto& [what, request] : requests) {
        SCOPED_TRACE(what);
        const int n_calls = run(request, 0, false);
        std::set<int> failing = {1, (n_calls + 1) / 2, n_calls};
        if (reference::under_thread_sanitizer()) failing = {n_calls};  // there, any call shows the threads
        for (const int nth : failing) {
            if (n_calls == 0) continue;  // this request makes no such call
            SCOPED_TRACE(fmt::format("call {} of {}", nth, n_calls));
            run(request, nth, what != "a prompt" && what != "a rewind");
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Calls, EngineOnFailingDevice, ::testing::ValuesIn(kFailures),
                         [](const ::testing::TestParamInfo<Failure>& test) { return test.param.name; });

// Where only memory is short, the request is refused and the run continues.
TEST_F(EngineOnDevice, AForkThatFindsNoRoomIsRefused) {
    keyhole::Engine engine(on(keyhole::BackendChoice::cuda), wakes_.callback());
    start(engine);
    step(engine, 3);
    for (const char* command :
         {"fork 1 h2o:budget=4", "lane 1 keyformer:budget=4", "lane 1 h2o:budget=6,kv=mqa"}) {
        SCOPED_TRACE(command);
        device().fails.allocation = device().n_allocations + 1;
        EXPECT_NE(send(engine, command).find("no room"), std::string::npos) << engine.status().message;
        EXPECT_EQ(step(engine, 2), "");
        EXPECT_EQ(engine.recorder().snapshot().steps.back()->lanes.size(), 2u);
        EXPECT_EQ(engine.recorder().snapshot().steps.back()->lanes[1].info->spec, "h2o:budget=6");
    }
    EXPECT_EQ(send(engine, "fork 1 h2o:budget=4"), "");
    step(engine, 1);
    EXPECT_EQ(engine.recorder().snapshot().steps.back()->lanes.size(), 3u);
}

}  // namespace
}  // namespace reference::test_engine_device
