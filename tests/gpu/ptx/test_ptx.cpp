// nvcc's PTX of the kernels, run on the host (see device.h): every kernel's cases; texts that are changed,
// which must be noticed; and small kernels with one fault each.
#include "engine/backend/cuda/device_executor.h"
#include "engine/backend/cuda/executor.h"
#include "engine/backend/cuda/selftest.h"
#include "engine/model/dtype.h"
#include "tests/gpu/ptx/counts.h"
#include "tests/gpu/ptx/device.h"
#include "tests/gpu/ptx/options.h"
#include "tests/gpu/ptx/warp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

namespace {

using keyhole::cuda::SelfTestLine;

constexpr const char* kAttention = "1 to 601 slots, head size 16 to 128";
constexpr const char* kPrompt = "140 tokens in f16, head size 48, slopes";
constexpr const char* kLayers = "3 lanes, width 328";
constexpr const char* kLaid = "products in integers";

const std::string& text() {
    static const std::string built = ptx::built_ptx();
    return built;
}

/// Runs the cases of that shape, or all, on that text. Returns the first fault or wrong value; empty when
/// all is right.
std::string fault_of(std::string ptx, const char* shape = "") {
    ptx::load_ptx(std::move(ptx));
    std::string reason;
    const std::shared_ptr<keyhole::cuda::Executor> executor = keyhole::cuda::make_device_executor(0, reason);
    if (executor == nullptr) return reason;
    std::size_t n = 0;
    std::string wrong;
    for (const SelfTestLine& line : keyhole::cuda::run_selftest(executor, shape)) {
        ++n;
        if (!line.passed) wrong += fmt::format("{}, {}, is off by {}\n", line.kernel, line.shape, line.worst);
    }
    if (n == 0) return "no case has this shape";
    return ptx::last_fault().empty() ? wrong : ptx::last_fault();
}

class Ptx : public testing::Test {
  protected:
    void SetUp() override { testing::internal::CaptureStderr(); }  // faults are printed
    void TearDown() override {
        testing::internal::GetCapturedStderr();
        ptx::options() = before_;
    }

  private:
    ptx::Options before_ = ptx::options();
};

TEST_F(Ptx, EveryKernelGivesWhatTheHostGives) {
    EXPECT_EQ(fault_of(text()), "");
    EXPECT_EQ(ptx::kernels_not_run(), std::vector<std::string>{});
}

/// Returns the wavefronts of inputs, from shared memory, for each wavefront of weights in a product.
double inputs_for_weights(std::string_view kernel) {
    double weights = 0, inputs = 0;
    for (const ptx::Traffic& row : ptx::traffic()) {
        if (row.kernel != kernel) continue;
        const std::string_view instruction = row.instruction;
        const bool is_float = instruction.ends_with("f32");  // norms and outputs
        if (row.space == "shared" && instruction.starts_with("ld.shared.v4"))
            inputs += static_cast<double>(row.wavefronts);
        if (row.space == "global" && instruction.starts_with("ld.global") && !is_float)
            weights += static_cast<double>(row.wavefronts);
    }
    return inputs / weights;
}

/// The goal is 1.5: an SM serves one wavefront a cycle, and weights arrive slower.
TEST_F(Ptx, ProductsReadFewInputsForEachWeight) {
    ptx::options().counts = true;
    ptx::clear_traffic();
    for (const char* shape : {kLayers, "520 to 11008 columns", "every type of block"})  // those with products
        EXPECT_EQ(fault_of(text(), shape), "");
    for (const char* kernel : {"MatrixVector<Fp16, 1>", "MatrixVector<Bf16, 1>", "MatrixVector<Stored, 1>"})
        EXPECT_LE(inputs_for_weights(kernel), 1.1) << kernel;
    // Stored: small weights have more inputs each; EightLanesTakeTwiceOneByWavefronts counts them.
    for (const char* kernel : {"MatrixVector<Fp16, 8>", "MatrixVector<Bf16, 8>"})
        EXPECT_LE(inputs_for_weights(kernel), 1.65) << kernel;  // lanes that are missing read zeros
    ptx::clear_traffic();
}

/// Wavefronts of L1 and shared memory for 256 weights of a row, of one lane or more.
struct Wavefronts {
    double weights = 0, inputs = 0;
};

/// Returns those of the launches since the last clear_traffic(), with weights in a buffer of that size, and
/// of inputs by the instructions that begin so.
Wavefronts counted(std::size_t weight_bytes, double n_weights, std::string_view instruction) {
    Wavefronts sum;
    for (const ptx::Traffic& row : ptx::traffic()) {
        const double n = static_cast<double>(row.wavefronts) * 256 / n_weights;
        if (row.space == "global" && row.buffer_bytes == weight_bytes) sum.weights += n;
        if (row.space == "shared" && row.instruction.starts_with(instruction)) sum.inputs += n;
    }
    ptx::clear_traffic();
    return sum;
}

/// Counts those of a product with many rows, as a layer has them.
template <int kBatch>
Wavefronts wavefronts_of(keyhole::DType type) {
    using Kernel = keyhole::cuda::MatrixVector<keyhole::cuda::Stored, kBatch>;
    constexpr int kRows = 64, kCols = 4096;
    ptx::load_ptx(text());
    std::string reason;
    const std::shared_ptr<keyhole::cuda::Executor> executor = keyhole::cuda::make_device_executor(0, reason);
    const auto zeros = [&](std::size_t n_bytes) {
        const std::vector<std::uint8_t> from(n_bytes);
        keyhole::cuda::Buffer<std::uint8_t> buffer(executor, n_bytes);
        executor->upload(buffer.data(), from.data(), n_bytes);
        executor->wait();
        return buffer;
    };
    const auto weights = zeros(keyhole::stored_bytes(type, std::int64_t{kRows} * kCols)),
               x = zeros(kBatch * kCols * sizeof(float)), y = zeros(kBatch * kRows * sizeof(float));
    Kernel kernel{};
    kernel.product[0] = {{weights.data(), type}, nullptr, reinterpret_cast<float*>(y.data()), kRows, kRows};
    kernel.x = reinterpret_cast<const float*>(x.data());
    kernel.n_products = 1;
    kernel.cols = kCols;
    ptx::clear_traffic();
    constexpr int kThreads = keyhole::cuda::kMaxThreads;
    executor->launch(kernel, {kernel.blocks(kThreads)}, kThreads);
    executor->wait();
    EXPECT_EQ(ptx::last_fault(), "");
    return counted(weights.size(), double{kRows} * kCols, "ld.shared.v4");
}

/// An SM of an H100 gets 14.5 bytes a cycle from memory (3.35 TB/s, 132 SMs, 1.755 GHz) and serves a
/// wavefront a cycle. By these two, 8 lanes take at most 2.1 times as long as one. With 8 rows a warp it
/// would be 1.2 times, but their registers leave an SM room for 8 warps alone, which wait
/// (2026-11-27-cuda-h200.txt).
TEST_F(Ptx, EightLanesTakeTwiceOneByWavefronts) {
    struct Type {
        keyhole::DType type;
        double most_weights;
    };
    ptx::options().counts = true;
    for (const Type& type : {Type{keyhole::DType::q8_0, 15}, Type{keyhole::DType::q4_k, 4}}) {
        SCOPED_TRACE(keyhole::dtype_name(type.type));
        const double bytes = static_cast<double>(keyhole::stored_bytes(type.type, 256));
        const auto cycles = [&](const Wavefronts& of) {
            return std::max(bytes / 14.5, of.weights + of.inputs);
        };
        const Wavefronts one = wavefronts_of<1>(type.type), eight = wavefronts_of<8>(type.type);
        RecordProperty("wavefronts",
                       fmt::format("{} + {}, {} + {}", one.weights, one.inputs, eight.weights, eight.inputs));
        EXPECT_LE(one.weights, type.most_weights);
        EXPECT_LE(eight.weights, type.most_weights);
        EXPECT_LE(one.inputs, 1.5 * one.weights);
        EXPECT_LE(eight.inputs, 16.1);
        EXPECT_LE(cycles(eight), 2.1 * cycles(one))
            << eight.weights << " + " << eight.inputs << " against " << one.weights << " + " << one.inputs;
    }
}

/// Counts those of a product in integers with as many rows and columns.
template <class Kernel>
Wavefronts laid_wavefronts(keyhole::DType type) {
    using namespace keyhole::cuda;
    constexpr int kRows = 64, kCols = 4096;
    ptx::load_ptx(text());
    std::string reason;
    const std::shared_ptr<Executor> executor = make_device_executor(0, reason);
    std::int64_t n_bytes = 0;
    with_read_block(type, [&]<class Of>() {
        n_bytes = kRows / keyhole::kLaidRows * keyhole::Laid<Of>::group_bytes(kCols);
    });
    const auto weights = uploaded(executor, std::vector<std::byte>(static_cast<std::size_t>(n_bytes)));
    const auto x = uploaded(executor, std::vector<float>(kCols)),
               y = uploaded(executor, std::vector<float>(Kernel::kLanes * kRows));
    const auto tiles = uploaded(executor, std::vector<NarrowTile>(kCols / keyhole::kCellColumns));
    Kernel kernel{};
    kernel.product[0] = {{weights.data(), type, kCols}, nullptr, y.data(), kRows, kRows};
    if constexpr (Kernel::kNorms)
        kernel.x = x.data();
    else
        kernel.narrowed = tiles.data();
    kernel.n_products = 1;
    kernel.cols = kCols;
    kernel.n_lanes = Kernel::kLanes;
    kernel.pairs_of_block = 2;
    ptx::clear_traffic();
    executor->launch(kernel, {kernel.blocks()}, kMaxThreads);
    executor->wait();
    EXPECT_EQ(ptx::last_fault(), "");
    return counted(weights.size(), double{kRows} * kCols, "");  // all that is put there and read
}

/// Codes are read side by side, and no bank serves twice. One lane takes fewer wavefronts than memory takes
/// cycles. Of eight, the inputs of each cell are put into shared memory and read, and so are its sums: the
/// limits are what was counted, and a little more.
TEST_F(Ptx, ProductsInIntegersTakeFewWavefronts) {
    using namespace keyhole::cuda;
    struct Type {
        keyhole::DType type;
        double most_of_eight;
    };
    ptx::options().counts = true;
    for (const Type& of : {Type{keyhole::DType::q8_0, 12.7}, Type{keyhole::DType::q4_k, 12.7},
                           Type{keyhole::DType::q6_k, 13.8}}) {
        SCOPED_TRACE(keyhole::dtype_name(of.type));
        const double cycles = static_cast<double>(keyhole::stored_bytes(of.type, 256)) / 14.5;
        const Wavefronts one = laid_wavefronts<LaidProducts<1>>(of.type),
                         eight = laid_wavefronts<LaidTiles>(of.type);
        RecordProperty(fmt::format("wavefronts_{}", keyhole::dtype_name(of.type)),
                       fmt::format("{} + {}, {} + {}", one.weights, one.inputs, eight.weights, eight.inputs));
        EXPECT_LE(one.weights + one.inputs, cycles) << one.weights << " + " << one.inputs;
        EXPECT_LE(eight.weights + eight.inputs, of.most_of_eight) << eight.weights << " + " << eight.inputs;
        // Where memory or shared memory decides, eight lanes take as long as so many of one.
        EXPECT_LE(std::max(cycles, eight.weights + eight.inputs) / std::max(cycles, one.weights + one.inputs),
                  1.6);
    }
}

/// What bank conflicts cost a kernel: wavefronts of shared memory for each that it needs.
struct Conflicts {
    std::string kernel;
    double share = 0;
};

/// Returns those of the last run, the worst first.
std::vector<Conflicts> worst_conflicts() {
    std::map<std::string, std::pair<double, double>> sums;
    for (const ptx::Traffic& row : ptx::traffic()) {
        if (row.space != "shared") continue;
        sums[row.kernel].first += static_cast<double>(row.wavefronts);
        sums[row.kernel].second += static_cast<double>(row.least);
    }
    std::vector<Conflicts> out;
    for (const auto& [kernel, sum] : sums) out.push_back({kernel, sum.first / sum.second});
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
    return out;
}

/// In the cases of all kernels, which are small.
TEST_F(Ptx, NoKernelWaitsLongForBanks) {
    ptx::options().counts = true;
    ptx::clear_traffic();
    EXPECT_EQ(fault_of(text()), "");
    const std::vector<Conflicts> worst = worst_conflicts();
    std::string first;
    for (std::size_t i = 0; i < 5 && i < worst.size(); ++i)
        first += fmt::format("{} {:.2f}\n", worst[i].kernel, worst[i].share);
    RecordProperty("worst", first);
    EXPECT_GT(worst.size(), 60u);
    for (const Conflicts& of : worst) EXPECT_LE(of.share, 1.2) << of.kernel;
    ptx::clear_traffic();
}

/// Returns the text for Turing, with the kernels that have other code there in place of the others. Sets
/// their number. The lines of sources that a fault names are then wrong.
std::string text_of_turing(int* n_replaced) {
    const std::string turing = ptx::built_ptx(75), entry = ".entry ", target = ".target sm_";
    std::string out = text();
    out.replace(out.find(target) + target.size(), 2, "75");
    for (std::size_t at = turing.find(entry); at != std::string::npos; at = turing.find(entry, at + 1)) {
        const std::string name = turing.substr(at, turing.find('(', at) + 1 - at);
        const std::size_t there = out.find(name);
        if (there == std::string::npos || name.find("run_kernelINS0_7AddNormE") != std::string::npos)
            continue;
        out.replace(there, out.find("\n}\n", there) - there,
                    turing.substr(at, turing.find("\n}\n", at) - at));
        ++*n_replaced;
    }
    return out;
}

TEST_F(Ptx, EveryKernelOfTuringDoes) {
    int n_replaced = 0;
    const std::string turing = text_of_turing(&n_replaced);
    EXPECT_EQ(n_replaced, 24);  // 18 of prompts, 5 that round to bf16, and products of bytes
    EXPECT_EQ(turing.find("m16n8k16"), std::string::npos) << "Turing has products of half that size";
    EXPECT_EQ(turing.find("m16n8k32"), std::string::npos);
    EXPECT_NE(turing.find("m16n8k8"), std::string::npos);
    EXPECT_NE(turing.find("m8n8k16"), std::string::npos);
    EXPECT_EQ(fault_of(turing), "");
    EXPECT_EQ(ptx::kernels_not_run(), std::vector<std::string>{});
}

TEST_F(Ptx, EveryOrderGivesTheSame) {
    ptx::options().late_streams = ptx::options().approximate = true;
    for (const unsigned seed : {2u, 3u}) {
        ptx::options().seed = seed;
        ptx::options().n_blocks = 1 + seed * 3;
        EXPECT_EQ(fault_of(text()), "") << "seed " << seed;
    }
}

// --- changed texts -----------------------------------------------------------------------------------------

/// Part of the text: a kernel, by a part of its mangled name.
struct Part {
    std::size_t first, end;
};
Part kernel(const std::string& name) {
    const std::size_t first = text().find(".entry _ZN7keyhole4cuda10run_kernelINS0_" + name);
    EXPECT_NE(first, std::string::npos) << name;
    return {first, text().find("\n}", first)};
}

/// Returns where the words stand in a kernel.
std::vector<std::size_t> places(const Part& part, const std::string& words) {
    std::vector<std::size_t> found;
    for (std::size_t at = text().find(words, part.first); at < part.end; at = text().find(words, at + 1))
        found.push_back(at);
    EXPECT_FALSE(found.empty()) << words;
    return found;
}

std::string without(std::size_t at, std::size_t n) {
    std::string changed = text();
    return changed.replace(at, n, "");
}

/// Returns the text with the registers of the n-th {...} of an instruction exchanged, the first two.
std::string with_exchanged(std::size_t at, int n) {
    std::string changed = text();
    std::size_t open = at;
    for (int i = 0; i <= n; ++i) open = changed.find('{', open + 1);
    const std::size_t comma = changed.find(", ", open), end = changed.find_first_of(",}", comma + 1);
    const std::string first = changed.substr(open + 1, comma - open - 1),
                      second = changed.substr(comma + 2, end - comma - 2);
    return changed.replace(open + 1, end - open - 1, second + ", " + first);
}

TEST_F(Ptx, ExchangedFragmentRegistersAreSeen) {
    const std::size_t at = places(kernel("12PromptAttendINS0_4Fp16ELi64"), "mma.sync").front();
    for (const int operand : {0, 1, 2, 3})
        EXPECT_NE(fault_of(with_exchanged(at, operand), kPrompt), "") << "operand " << operand;
    const std::size_t of_bytes = places(kernel("9LaidTilesE"), "mma.sync.aligned.m16n8k32").front(),
                      of_half = places(kernel("9LaidTilesE"), "mma.sync.aligned.m16n8k16").front();
    for (const int operand : {0, 1, 2})
        EXPECT_NE(fault_of(with_exchanged(of_bytes, operand), kLaid), "") << "operand " << operand;
    for (const int operand : {0, 1})
        EXPECT_NE(fault_of(with_exchanged(of_half, operand), kLaid), "") << "operand " << operand;
}

/// Of 64 columns the case has 48: what is transposed for the last quarter is not used.
TEST_F(Ptx, ALostTransposeIsSeen) {
    std::size_t n_unseen = 0;
    const std::vector<std::size_t> all = places(kernel("12PromptAttendINS0_4Fp16ELi64"), ".trans");
    for (const std::size_t at : all) n_unseen += fault_of(without(at, 6), kPrompt).empty();
    EXPECT_EQ(n_unseen, all.size() / 4);
}

TEST_F(Ptx, ACounterThatIsNotResetIsSeen) {
    const std::size_t at = places(kernel("11AttendSplitIfE"), ".global.inc.u32").front();
    std::string changed = text();
    EXPECT_NE(fault_of(changed.replace(at, 15, ".global.add.u32"), kAttention), "");
}

/// Returns the lines of a kernel's loads and stores that the cases of that shape run.
std::set<int> lines_run(const std::string& kernel, const char* shape) {
    ptx::options().counts = true;
    ptx::clear_traffic();
    EXPECT_EQ(fault_of(text(), shape), "");
    ptx::options().counts = false;
    std::set<int> lines;
    for (const ptx::Traffic& row : ptx::traffic())
        if (row.kernel == kernel) lines.insert(row.line);
    ptx::clear_traffic();
    return lines;
}

/// Each load and store of a kernel that the cases run.
TEST_F(Ptx, AnAddressOffByOneElementIsSeen) {
    const std::set<int> lines = lines_run("AddNorm", kLayers);
    const Part part = kernel("7AddNormE");
    int n_changed = 0;
    for (const char* access : {"ld.global.f32", "st.global.f32", "ld.shared.f32", "st.shared.f32"})
        for (const std::size_t at : places(part, access)) {
            const auto line = 1 + std::count(text().begin(), text().begin() + std::ptrdiff_t(at), '\n');
            const std::size_t end = text().find(']', at), plus = text().find('+', at);
            if (plus < end || !lines.contains(static_cast<int>(line))) continue;
            std::string changed = text();
            ++n_changed;
            EXPECT_NE(fault_of(changed.insert(end, "+4"), kLayers), "") << text().substr(at, end - at);
        }
    EXPECT_GE(n_changed, 8);
}

/// Returns the indices of a kernel's barriers that are not missed.
std::vector<std::size_t> unseen_barriers(const std::string& name, const char* shape) {
    std::vector<std::size_t> unseen;
    const std::vector<std::size_t> barriers = places(kernel(name), "bar.sync");
    for (std::size_t i = 0; i < barriers.size(); ++i)
        if (fault_of(without(barriers[i], text().find(';', barriers[i]) + 1 - barriers[i]), shape).empty())
            unseen.push_back(i);
    return unseen;
}

TEST_F(Ptx, EveryLostBarrierIsSeen) {
    EXPECT_EQ(unseen_barriers("11AttendSplitIfE", kAttention), std::vector<std::size_t>{});
    // The third one: up to 128 dimensions a lane reads back what it wrote itself.
    const std::vector<std::size_t> unneeded = unseen_barriers("12PromptAttendINS0_4Fp16ELi64", kPrompt);
    EXPECT_TRUE(unneeded.empty() || unneeded == std::vector<std::size_t>{2}) << unneeded.size();
}

/// The barrier before the count of blocks that have written, its release and its acquire: AttendSplit's last
/// block reads what the others wrote.
TEST_F(Ptx, WhatOrdersBlocksIsMissedInEveryOrder) {
    const Part part = kernel("11AttendSplitINS0_4Fp16");
    const std::string count = "atom.acq_rel.gpu.global.inc";
    const std::size_t at = places(part, count).front();
    const std::size_t barrier = text().rfind("bar.sync", at);
    for (unsigned seed = 1; seed <= 4; ++seed) {
        ptx::options().seed = seed;
        EXPECT_NE(fault_of(without(barrier, text().find(';', barrier) + 1 - barrier), kAttention)
                      .find("without an order between the blocks"),
                  std::string::npos)
            << "seed " << seed;
    }
    for (const char* half : {"atom.acquire.gpu.global.inc", "atom.release.gpu.global.inc"}) {
        std::string changed = text();
        EXPECT_NE(fault_of(changed.replace(at, count.size(), half), kAttention)
                      .find("without an order between the blocks"),
                  std::string::npos)
            << half;
    }
}

// --- small kernels -----------------------------------------------------------------------------------------

/// A kernel `test` with these instructions. It has %r0 to %r9, %rd0 to %rd9, %f0 to %f9, %p0 to %p9, 256
/// bytes of shared memory, the thread in %r0, the block in %r1, and two pointers in %rd0 and %rd1.
std::string small_kernel(const std::string& instructions) {
    return ".version 7.0\n.target sm_80\n.address_size 64\n"
           ".visible .entry test(.param .u64 a, .param .u64 b)\n{\n"
           ".reg .b32 %r<10>; .reg .b64 %rd<10>; .reg .f32 %f<10>; .reg .pred %p<10>;\n"
           ".shared .align 16 .b8 bytes[256];\n"
           "ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b];\n"
           "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;\n" +
           instructions + "\nret;\n}\n";
}
/// Of thread i, at 4 i of the first buffer: the address, in %rd2.
constexpr const char* kPlace = "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd2, %rd0, %rd2;\n";

/// Two buffers of 32 words, the first without contents, the second with 0 to 31.
class SmallKernel : public testing::Test {
  protected:
    std::string run(const std::string& instructions, unsigned n_threads = 32, unsigned n_blocks = 1) {
        first = static_cast<std::uint32_t*>(memory.allocate(128, false));
        second = static_cast<std::uint32_t*>(memory.allocate(128, false));
        for (std::uint32_t i = 0; i < 32; ++i) second[i] = i;
        memory.note_copy(*memory.find(reinterpret_cast<std::uint64_t>(second)),
                         reinterpret_cast<std::uint64_t>(second), 128);
        try {
            program = std::make_unique<ptx::Program>(small_kernel(instructions));
            ptx::Launch launch;
            launch.kernel = &program->kernel("test");
            launch.program = program.get();
            launch.grid = {n_blocks, 1, 1};
            launch.n_threads = n_threads;
            launch.params.resize(16);
            std::memcpy(launch.params.data(), &first, 8);
            std::memcpy(launch.params.data() + 8, &second, 8);
            launch.id = ++id;
            launch.memory = &memory;
            ptx::run_grid(launch, seed, 4);
        } catch (const ptx::Fault& fault) {
            return fault.what();
        }
        return "";
    }
    /// Says whether a run ends with a fault that has these words.
    testing::AssertionResult faults(const std::string& instructions, const std::string& words,
                                    unsigned n_threads = 32, unsigned n_blocks = 1) {
        const std::string fault = run(instructions, n_threads, n_blocks);
        if (fault.find(words) != std::string::npos) return testing::AssertionSuccess();
        return testing::AssertionFailure() << "the fault is \"" << fault << "\"";
    }

    ptx::Memory memory{1 << 20};
    std::unique_ptr<ptx::Program> program;
    std::uint32_t *first = nullptr, *second = nullptr;
    std::uint64_t id = 0;
    unsigned seed = 1;
};

TEST_F(SmallKernel, KeepsExactBounds) {
    EXPECT_EQ(run(std::string(kPlace) + "st.global.u32 [%rd2], %r0;"), "");
    EXPECT_EQ(first[31], 31u);
    EXPECT_TRUE(faults(std::string(kPlace) + "st.global.u32 [%rd2+4], %r0;",
                       "block 0, thread 31, line 11 of the PTX (st.global.u32 [%rd2+4], %r0): writes 4 bytes "
                       "at byte 128 of a buffer of 128 bytes"));
    EXPECT_TRUE(faults("ld.global.u32 %r2, [%rd1+-4];", "reads 4 bytes"));
    EXPECT_TRUE(faults("ld.global.u32 %r2, [%rd1+2];", "misaligned"));
    EXPECT_TRUE(
        faults("ld.shared.u32 %r2, [256];", "reads 4 bytes at byte 256 of 256 bytes of shared memory"));
    memory.release(second);
    const std::uint64_t freed = reinterpret_cast<std::uint64_t>(second);
    EXPECT_TRUE(faults(fmt::format("mov.u64 %rd1, {}; ld.global.u32 %r2, [%rd1];", freed),
                       "a freed buffer of 128 bytes"));
}

TEST_F(SmallKernel, SeesUninitialisedMemory) {
    EXPECT_TRUE(faults(std::string(kPlace) + "ld.global.u32 %r2, [%rd2];", "reads memory that nobody wrote"));
    EXPECT_TRUE(faults("ld.shared.u32 %r2, [8];", "reads shared memory that nobody wrote"));
    EXPECT_EQ(run("st.shared.u32 [8], 1; bar.sync 0; ld.shared.u32 %r2, [8];"), "");
}

TEST_F(SmallKernel, SeesWhatAReadFindsLaterInALoop) {
    // A read that found a whole chunk copied reads the next chunk, then one that another thread writes.
    auto* chunks = static_cast<std::byte*>(memory.allocate(4096, false));
    const std::uint64_t at = reinterpret_cast<std::uint64_t>(chunks);
    const auto rounds = [&](int n, const std::string& between) {
        return fmt::format(
            "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd2, %rd2, {}; mov.u32 %r3, 0; AGAIN:"
            "ld.global.u32 %r4, [%rd2]; {} add.s64 %rd2, %rd2, 1024; add.s32 %r3, %r3, 1;"
            "setp.lt.s32 %p0, %r3, {}; @%p0 bra AGAIN;",
            at, between, n);
    };
    memory.note_copy(*memory.find(at), at, 2048);
    EXPECT_EQ(run(rounds(2, "")), "");
    EXPECT_TRUE(faults(rounds(3, ""), "reads memory that nobody wrote"));
    const std::string next_of_other = fmt::format(
        "xor.b32 %r5, %r0, 1; mul.wide.u32 %rd3, %r5, 4; add.s64 %rd3, %rd3, {};"
        "st.global.u32 [%rd3], %r0;",
        at + 1024);
    EXPECT_TRUE(faults(rounds(2, next_of_other), "wrote and no barrier follows"));
    EXPECT_EQ(run(rounds(2, next_of_other + "bar.sync 0;")), "");
}

TEST_F(SmallKernel, SeesRacesInABlock) {
    const std::string mine = "shl.b32 %r2, %r0, 2; st.shared.u32 [%r2], %r0;",
                      other = "xor.b32 %r3, %r2, 4; ld.shared.u32 %r4, [%r3];";
    EXPECT_EQ(run(mine + "bar.sync 0;" + other, 64), "");
    EXPECT_TRUE(faults(mine + other, "wrote and no barrier follows", 64));
    EXPECT_TRUE(
        faults(mine + "bar.sync 0;" + other + "st.shared.u32 [%r2], %r3;", "read and no barrier", 64));
    EXPECT_TRUE(faults("st.shared.u32 [0], %r0;", "writes where thread"));
    EXPECT_EQ(run("st.shared.u32 [0], 7;"), "") << "all write the same";
    const std::string global = std::string(kPlace) + "st.global.u32 [%rd2], %r0;",
                      read =
                          "xor.b32 %r3, %r0, 1; mul.wide.u32 %rd3, %r3, 4; add.s64 %rd3, %rd0, %rd3;"
                          "ld.global.u32 %r4, [%rd3];";
    EXPECT_EQ(run(global + "bar.sync 0;" + read), "");
    EXPECT_TRUE(faults(global + read, "wrote and no barrier follows"));
}

TEST_F(SmallKernel, OrdersBlocksByACounterAndFences) {
    // Thread 0 of each of 4 blocks writes a word; the last block reads all.
    const std::string write =
                          "setp.ne.u32 %p0, %r0, 0; @%p0 bra END; mul.wide.u32 %rd2, %r1, 4;"
                          "add.s64 %rd2, %rd0, %rd2; st.global.u32 [%rd2], %r1;",
                      count = "atom.global.inc.u32 %r2, [%rd1], 3;",
                      last = "setp.ne.u32 %p1, %r2, 3; @%p1 bra END;", fence = "membar.gl;",
                      read =
                          "ld.global.u32 %r3, [%rd0]; ld.global.u32 %r4, [%rd0+4];"
                          "ld.global.u32 %r5, [%rd0+8]; ld.global.u32 %r6, [%rd0+12]; END:";
    for (seed = 1; seed < 6; ++seed) {
        EXPECT_EQ(run(write + fence + count + fence + last + read, 32, 4), "");
        EXPECT_TRUE(
            faults(write + count + fence + last + read, "without an order between the blocks", 32, 4));
        EXPECT_TRUE(
            faults(write + fence + count + last + read, "without an order between the blocks", 32, 4));
    }
    EXPECT_TRUE(faults("st.global.u32 [%rd0], %r1;", "without an order between the blocks", 1, 2));
}

TEST_F(SmallKernel, SeesDivergingBarriersAndCollectives) {
    const std::string half = "setp.lt.u32 %p0, %r0, 16; @%p0 bra A;";
    EXPECT_TRUE(faults(half + "bar.sync 0; bra B; A: bar.sync 0; B:", "waits for its warp"));
    const std::string warp = "setp.lt.u32 %p0, %r0, 32; @%p0 bra A;";
    EXPECT_TRUE(faults(warp + "bar.sync 0; bra B; A: bar.sync 0; B:", "waits here", 64));
    EXPECT_TRUE(faults(half + "ret; A: shfl.sync.idx.b32 %r2, %r0, 20, 31, -1;", "is not there"));
    EXPECT_EQ(run(half + "A: bar.sync 0;"), "") << "all run together again";
}

TEST_F(SmallKernel, ShufflesAndVotes) {
    const std::string store = std::string(kPlace) + "st.global.u32 [%rd2], %r2;";
    ASSERT_EQ(run("shfl.sync.bfly.b32 %r2, %r0, 5, 31, -1;" + store), "");
    for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(first[i], i ^ 5u);
    ASSERT_EQ(run("shfl.sync.down.b32 %r2, %r0, 3, 31, -1;" + store), "");
    for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(first[i], i < 29 ? i + 3 : i);
    ASSERT_EQ(run("shfl.sync.up.b32 %r2, %r0, 3, 0, -1;" + store), "");
    for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(first[i], i < 3 ? i : i - 3);
    ASSERT_EQ(run("shfl.sync.idx.b32 %r2, %r0, 2, 6175, -1;" + store), "");  // segments of 8
    for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(first[i], i / 8 * 8 + 2);
    ASSERT_EQ(run("shfl.sync.up.b32 %r3|%p0, %r0, 3, 0, -1; selp.b32 %r2, %r3, 77, %p0;" + store), "");
    for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(first[i], i < 3 ? 77 : i - 3);
    ASSERT_EQ(run("setp.lt.u32 %p0, %r0, 5; vote.sync.ballot.b32 %r2, %p0, -1;" + store), "");
    EXPECT_EQ(first[9], 31u);
    ASSERT_EQ(
        run("setp.lt.u32 %p0, %r0, 5; vote.sync.any.pred %p1, %p0, -1; selp.b32 %r2, 1, 0, %p1;" + store),
        "");
    EXPECT_EQ(first[9], 1u);
    ASSERT_EQ(
        run("setp.lt.u32 %p0, %r0, 5; vote.sync.all.pred %p1, %p0, -1; selp.b32 %r2, 1, 0, %p1;" + store),
        "");
    EXPECT_EQ(first[9], 0u);
}

TEST_F(SmallKernel, NamesAnUnknownInstruction) {
    EXPECT_TRUE(faults("sad.u32 %r2, %r0, %r1, %r1;",
                       "test, line 10 of the PTX: unknown instruction: \"sad.u32 %r2, %r0, %r1, %r1\""));
    EXPECT_TRUE(faults("ld.global.b128 %r2, [%rd0];", "unknown instruction"));
    EXPECT_TRUE(faults("mov.b64 %rd2, %r0;", "a register of another size"));
}

TEST_F(SmallKernel, CountsSectorsAndWavefronts) {
    const ptx::Options before = ptx::options();
    ptx::options().counts = true;
    const auto counted = [&](const std::string& instructions) {
        ptx::clear_traffic();
        EXPECT_EQ(run(instructions), "");
        return ptx::traffic().at(0);
    };
    const ptx::Traffic dense =
        counted("mul.wide.u32 %rd2, %r0, 4; add.s64 %rd2, %rd1, %rd2; ld.global.u32 %r2, [%rd2];");
    EXPECT_EQ(dense.instruction, "ld.global.u32");
    EXPECT_EQ(dense.buffer_bytes, 128u);
    EXPECT_EQ(dense.n_warps, 1u);
    EXPECT_EQ(dense.bytes, 128u);
    EXPECT_EQ(dense.sectors, 4u);
    EXPECT_LE(dense.wavefronts, 2u) << "the buffer may start within a line";
    const ptx::Traffic one = counted("ld.global.u32 %r2, [%rd1];");
    EXPECT_EQ(one.sectors, 1u);
    EXPECT_EQ(one.wavefronts, 1u);
    // 8 lanes at a time, each 16 bytes of every 32: two lines.
    const ptx::Traffic shared = counted(
        "and.b32 %r2, %r0, 7; shl.b32 %r2, %r2, 5;"
        "st.shared.v4.u32 [%r2], {%r1, %r1, %r1, %r1};");
    EXPECT_EQ(shared.space, "shared");
    EXPECT_EQ(shared.wavefronts, 8u);
    ptx::clear_traffic();
    ptx::options() = before;
}

TEST_F(SmallKernel, MovesApproximationsByOnePlace) {
    const ptx::Options before = ptx::options();
    const std::string root = "cvt.rn.f32.u32 %f0, %r0; rcp.approx.ftz.f32 %f1, %f0; " + std::string(kPlace) +
                             "st.global.f32 [%rd2], %f1;";
    ptx::options().approximate = false;
    ASSERT_EQ(run(root), "");
    std::vector<float> exact(32), moved(32);
    std::memcpy(exact.data(), first, 128);
    ptx::options().approximate = true;
    ASSERT_EQ(run(root), "");
    std::memcpy(moved.data(), first, 128);
    ptx::options() = before;
    int n_moved = 0;
    for (std::size_t i = 1; i < 32; ++i) {
        EXPECT_EQ(exact[i], 1.0f / static_cast<float>(i));
        EXPECT_LE(std::abs(moved[i] - exact[i]), std::nextafter(exact[i], 2.0f) - exact[i]);
        n_moved += moved[i] != exact[i];
    }
    EXPECT_GT(n_moved, 10);
}

// --- the runtime -------------------------------------------------------------------------------------------

TEST_F(Ptx, RefusesGridsThatADeviceRefuses) {
    ptx::load_ptx(text());
    std::string reason;
    const std::shared_ptr<keyhole::cuda::Executor> executor = keyhole::cuda::make_device_executor(0, reason);
    const keyhole::cuda::AddBias nothing{};
    executor->launch(nothing, {1, 65535, 1}, 256);
    EXPECT_ANY_THROW(executor->launch(nothing, {1, 65536, 1}, 256));
    EXPECT_ANY_THROW(executor->launch(nothing, {1, 1, 1}, 288)) << "more than its launch bounds";
}

/// The error of a wait says that earlier work may have failed, not only its own call.
TEST_F(Ptx, ALateErrorSaysThatEarlierWorkMayHaveFailed) {
    ptx::load_ptx(text());
    ptx::options().late_streams = true;
    std::string reason;
    const std::shared_ptr<keyhole::cuda::Executor> executor = keyhole::cuda::make_device_executor(0, reason);
    const keyhole::cuda::Buffer<float> y(executor, 8), bias(executor, 8);
    keyhole::cuda::AddBias beyond{};
    beyond.y = y.data();
    beyond.bias = bias.data();
    beyond.n = beyond.width = 64;
    executor->launch(beyond, {1, 1, 1}, 64);
    try {
        executor->wait();
        FAIL() << "it read past the end";
    } catch (const std::exception& error) {
        const std::string message = error.what();
        EXPECT_NE(message.find(", or earlier work, failed on the device"), std::string::npos) << message;
        EXPECT_NE(message.find("KEYHOLE_CUDA_CHECK=1 names the kernel"), std::string::npos) << message;
    }
}

TEST_F(Ptx, ACaptureForbidsAllocations) {
    ptx::load_ptx(text());
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    void* data = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&data, 64), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(Ptx, LateStreamsWaitForSomebodyWhoWaits) {
    ptx::load_ptx(text());
    ptx::options().late_streams = true;
    cudaStream_t stream = nullptr, other = nullptr;
    cudaEvent_t event = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    void* data = nullptr;
    cudaMalloc(&data, 4);
    int from = 1, to = 0;
    cudaMemcpyAsync(data, &from, 4, cudaMemcpyHostToDevice, stream);
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(other, event, 0);
    cudaMemcpyAsync(&to, data, 4, cudaMemcpyDeviceToHost, other);
    from = 2;
    EXPECT_EQ(to, 0);
    cudaStreamSynchronize(other);
    EXPECT_EQ(to, 2);
    cudaFree(data);
    EXPECT_EQ(cudaMemcpyAsync(&to, data, 4, cudaMemcpyDeviceToHost, other), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other), cudaErrorLaunchFailure);
    EXPECT_NE(ptx::last_fault().find("the buffer of 4 bytes is freed"), std::string::npos);
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
}

}  // namespace
