// What a device may do and the host usually does not: threads and blocks in any order, memory full of what
// was there before. Results must not change by a bit. Racy kernels, and the real ones without one of their
// barriers, show that this is caught.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/selftest.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/executor_over_host.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace keyhole::cuda::test_cuda_orders {
namespace {

std::vector<HostOrder> orders() {
    return {{RunOrder::forward, 0, 0xff},   {RunOrder::backward, 0, 0xff},    {RunOrder::shuffled, 1, 0x00},
            {RunOrder::shuffled, 77, 0x7f}, {RunOrder::shuffled, 4242, 0xa5}, {RunOrder::in_turns, 7, 0xff}};
}

/// Returns the orders in which all kernels run. They are slow under AddressSanitizer, where one shuffled
/// order is enough to visit all memory.
std::vector<HostOrder> orders_of_kernels() {
#ifdef __SANITIZE_ADDRESS__
    return {{RunOrder::shuffled, 77, 0x7f}};
#else
    return orders();
#endif
}

std::string text_of(const HostOrder& order) {
    return fmt::format("order {}, seed {}, poison {:02x}", static_cast<int>(order.order), order.seed,
                       order.poison);
}

TEST(CudaOrders, VisitsEveryNumberOnce) {
    for (const int n : {1, 2, 3, 32, 97, 256, 1000})
        for (const int order : {0, 1, 2})
            for (const std::uint32_t seed : {0u, 1u, 77u, 0xffffffffu}) {
                std::set<int> seen;
                const Visit visit(n, order, seed);
                for (int i = 0; i < n; ++i) seen.insert(visit.at(i));
                EXPECT_EQ(seen.size(), to_index(n)) << n << " " << order << " " << seed;
                EXPECT_EQ(*seen.begin(), 0);
                EXPECT_EQ(*seen.rbegin(), n - 1);
            }
}

TEST(CudaOrders, NoKernelDependsOnThem) {
    for (const HostOrder& order : orders_of_kernels())
        for (const SelfTestLine& line : run_selftest(make_host_executor(order)))
            EXPECT_EQ(line.worst, 0) << line.kernel << ", " << line.shape << ": " << text_of(order) << " "
                                     << line.failure;
}

/// Rows of a model; with 16-bit weights and heads of 16 the prompt's attention is fused.
void expect_no_row_depends_on_them(const reference::TinyShape& shape) {
    const reference::TinyModel folder(shape);
    const auto model = load_model(folder.folder());
    const std::vector<int> tokens = reference::random_tokens(52, 5);
    const std::span<const int> all(tokens);
    const std::vector<std::string> specs = {"full", "keyformer:budget=9", "h2o:budget=9,every=4",
                                            "tova:budget=9,positions=cache"};
    std::vector<reference::LaneRows> rows;
    for (const HostOrder& order : orders_of_kernels()) {
        const auto backend = make_cuda_backend(model, make_host_executor(order));
        rows.push_back(reference::run_backend(*backend, model, specs, all.first(40), all.subspan(40)));
        for (std::size_t lane = 0; lane < specs.size(); ++lane)
            for (std::size_t row = 0; row < rows.back()[lane].size(); ++row)
                ASSERT_EQ(reference::difference(rows.front()[lane][row], rows.back()[lane][row]), "")
                    << specs[lane] << " row " << row << ": " << text_of(order);
    }
}

TEST(CudaOrders, NoRowDependsOnThem) {
    reference::TinyShape shape;
    expect_no_row_depends_on_them(shape);
    shape.head_dim = 16;
    shape.dtype = reference::StoredAs::bf16;
    expect_no_row_depends_on_them(shape);
}

/// Kernels with a fault that a device may show and a plain loop does not.
enum class Fault { none, same_phase, other_block, no_shared, no_local };
template <Fault kFault>
struct Faulty {
    static constexpr int kPhases = 3;
    struct Shared {
        float x[kMaxThreads];
        float never_written;
    };
    struct Local {
        float mine;
    };
    const float* in;
    float* out;  ///< [blocks, threads]

    void phase(int p, const Block& block, Shared& shared, Local& local) const {
        const int i = block.x * block.n_threads + block.thread;
        const int neighbour = (block.thread + 1) % block.n_threads;
        if (p == 0) {
            shared.x[block.thread] = in[i];
            if (kFault != Fault::no_local) local.mine = 1;
            // Reads what another thread writes before the barrier.
            if (kFault == Fault::same_phase) out[i] = shared.x[neighbour];
        } else if (p == 1) {
            if (kFault != Fault::same_phase) out[i] = shared.x[neighbour] * local.mine;
            if (kFault == Fault::no_shared) out[i] += shared.never_written;
        } else if (kFault == Fault::other_block && block.x > 0 && block.thread == 0) {
            out[i] += out[i - block.n_threads];  // of a block that may not have run
        }
    }
};

template <Fault kFault>
std::set<std::vector<std::uint32_t>> results_of() {
    std::vector<float> in(4 * 64);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i) + 0.5f;
    std::set<std::vector<std::uint32_t>> results;
    for (const HostOrder& order : orders()) {
        std::vector<float> out(in.size(), -7);
        run_on_host(Faulty<kFault>{in.data(), out.data()}, {4}, 64, static_cast<int>(order.order), order.seed,
                    order.poison);
        std::vector<std::uint32_t> bits(out.size());
        std::memcpy(bits.data(), out.data(), out.size() * sizeof(float));
        results.insert(bits);
    }
    return results;
}

TEST(CudaOrders, FindRacesAndMemoryThatNobodyWrote) {
    EXPECT_EQ(results_of<Fault::none>().size(), 1u);
    EXPECT_GT(results_of<Fault::same_phase>().size(), 1u);
    EXPECT_GT(results_of<Fault::other_block>().size(), 1u);
    EXPECT_GT(results_of<Fault::no_shared>().size(), 1u);
    EXPECT_GT(results_of<Fault::no_local>().size(), 1u);
}

/// Half of the threads leave each phase at once.
struct Leaves {
    static constexpr int kPhases = 2;
    struct Shared {
        int n_here[kMaxThreads];
    };
    struct Local {};
    int* out;
    void phase(int p, const Block& block, Shared& shared, Local&) const {
        if (p == 0) shared.n_here[block.thread] = 0;
        if (p == 0 && block.thread % 2 == 0) return;
        if (p == 0) shared.n_here[block.thread] = 1;
        if (p == 1 && block.thread == 0)
            for (int i = out[0] = 0; i < block.n_threads; ++i) out[0] += shared.n_here[i];
    }
};

/// A barrier that only some threads reach cannot be written: who leaves a phase waits at its end.
TEST(CudaOrders, ABarrierIsForAllThreads) {
    for (const HostOrder& order : orders()) {
        int out = -1;
        run_on_host(Leaves{&out}, {1}, 64, static_cast<int>(order.order), order.seed, order.poison);
        EXPECT_EQ(out, 32) << text_of(order);
    }
}

/// Barriers are the ends of phases; beyond them there is what block.h has for the last block, nothing else.
TEST(CudaOrders, NoKernelSynchronisesByItself) {
    int n_files = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(reference::source_folder() / "engine/backend/cuda/kernels")) {
        const std::string text = read_text_file(entry.path());
        for (const char* word : {"__sync", "__shfl", "__ballot", "atomic", "__threadfence"})
            EXPECT_EQ(text.find(word), std::string::npos) << entry.path() << ": " << word;
        ++n_files;
    }
    EXPECT_GE(n_files, 7);
}

#ifndef __SANITIZE_ADDRESS__  // a mutant would end the process there

/// Runs one kernel without the barrier after one of its phases: a thread goes on to the next phase at once.
class Mutant final : public reference::ExecutorOverHost {
  public:
    Mutant(int kernel, HostOrder order, int after) : ExecutorOverHost(order), kernel_(kernel) {
        order.without = after;
        without_barrier_ = make_host_executor(order);
    }

  protected:
    void run_one(const Launch& launch) override {
        (launch.kernel == kernel_ ? *without_barrier_ : host()).launch(launch);
    }

  private:
    int kernel_;
    std::unique_ptr<Executor> without_barrier_;
};

/// Returns whether some order shows the missing barrier, in the cases of these shapes. Where blocks join
/// their results, one block must stop between two threads while the others end: few seeds do that.
bool shows(int kernel, int after, const std::set<std::string>& shapes) {
    std::vector<HostOrder> all = orders();
    for (unsigned seed = 0; seed < 32; ++seed) all.push_back({RunOrder::in_turns, seed, 0xff});
    for (const HostOrder& order : all)
        for (const std::string& shape : shapes)
            for (const SelfTestLine& line :
                 run_selftest(std::make_shared<Mutant>(kernel, order, after), shape))
                if (line.worst != 0) return true;
    return false;
}

/// Does so in a process of its own: a mutant may run into an assertion, or never end.
bool is_caught(int kernel, int after, const std::set<std::string>& shapes) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(STDERR_FILENO);
        ::alarm(60);
        ::_exit(shows(kernel, after, shapes) ? 1 : 0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

TEST(CudaOrders, FindEveryMissingBarrier) {
    std::map<std::string, std::set<std::string>> shapes;
    for (const SelfTestLine& line : run_selftest(make_host_executor()))
        shapes[line.kernel].insert(line.shape);
    int n_barriers = 0;
    Kernels::for_each([&]<class Kernel>() {
        const std::string name(kernel_name<Kernel>());
        // The same source as for float, or as for fp16; there are no floats in prompt attention.
        const bool has_no_floats = name.starts_with("Prompt");
        if (name.find(has_no_floats ? "Bf16" : "16") != std::string::npos) return;
        // After the last phase there is one only where it repeats.
        constexpr int kBarriers = Kernel::kPhases - (kRepeatedPhases<Kernel> == Kernel::kPhases ? 0 : 1);
        for (int after = 0; after < kBarriers; ++after, ++n_barriers) {
#ifdef KH_NO_ASSERT
            // The last phase changes the count, which the phase before reads in an assertion alone.
            if (name.starts_with("CompactHead") && after == 1) continue;
#endif
            EXPECT_TRUE(is_caught(kKernelIndex<Kernel>, after, shapes[name]))
                << name << " after phase " << after;
        }
    });
    EXPECT_GE(n_barriers, 40);
    EXPECT_FALSE(is_caught(kKernelIndex<AddNorm>, 99, shapes["AddNorm"])) << "with all barriers";
}

#endif

}  // namespace
}  // namespace keyhole::cuda::test_cuda_orders
