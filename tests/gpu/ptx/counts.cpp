#include "tests/gpu/ptx/counts.h"

#include "tests/gpu/ptx/warp.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <tuple>

namespace ptx {
namespace {

using Key = std::tuple<std::string, int, std::uint64_t, bool>;

/// Never freed, since it is written when the process ends.
std::map<Key, Traffic>& table() {
    static auto* counted = new std::map<Key, Traffic>;
    return *counted;
}

/// How many different ones there are.
template <std::size_t kN>
unsigned n_different(std::array<std::uint64_t, kN>& values, std::size_t n) {
    std::sort(values.begin(), values.begin() + n);
    return static_cast<unsigned>(std::unique(values.begin(), values.begin() + n) - values.begin());
}

unsigned sectors_of(const Warp& warp, const std::uint64_t* at, std::uint64_t n) {
    std::array<std::uint64_t, 2 * kLanes> sectors;
    std::size_t n_sectors = 0;
    for_lanes(warp.mask, [&](int lane) {
        sectors[n_sectors++] = at[lane] / 32;
        sectors[n_sectors++] = (at[lane] + n - 1) / 32;
    });
    return n_different(sectors, n_sectors);
}

/// Of lanes first to first + n_lanes: 128-byte lines.
unsigned lines_of(const Warp& warp, const std::uint64_t* at, int first, int n_lanes) {
    std::array<std::uint64_t, kLanes> lines;
    std::size_t n = 0;
    for (int lane = first; lane < first + n_lanes; ++lane)
        if ((warp.mask >> lane & 1u) != 0) lines[n++] = at[lane] / 128;
    return n_different(lines, n);
}

/// Of lanes first to first + n_lanes: the most words that one bank has to give.
unsigned conflicts_of(const Warp& warp, const std::uint64_t* at, std::uint64_t n, int first, int n_lanes) {
    std::array<std::vector<std::uint64_t>, 32> banks;
    std::size_t most = 0;
    for (int lane = first; lane < first + n_lanes; ++lane) {
        if ((warp.mask >> lane & 1u) == 0) continue;
        for (std::uint64_t word = at[lane] / 4; word <= (at[lane] + n - 1) / 4; ++word) {
            std::vector<std::uint64_t>& bank = banks[word % 32];
            if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
            most = std::max(most, bank.size());
        }
    }
    return static_cast<unsigned>(most);
}

}  // namespace

void count_access(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n, bool is_shared) {
    const auto* buffer = static_cast<const Buffer*>(op.hint);
    const std::uint64_t n_bytes = is_shared || buffer == nullptr ? 0 : buffer->n_bytes;
    const Launch& launch = *warp.block->launch;
    Traffic& row = table()[{launch.kernel->name, op.line, n_bytes, is_shared}];
    if (row.n_warps == 0) {
        row.kernel = launch.kernel->name;
        row.line = op.line;
        const std::size_t start = op.text.find_first_not_of(" \t", op.text[0] == '@' ? op.text.find(' ') : 0);
        row.instruction = op.text.substr(start, op.text.find_first_of(" \t", start) - start);
        if (op.source >= 0) row.source = launch.program->sources()[static_cast<std::size_t>(op.source)];
        row.space = is_shared ? "shared" : "global";
        row.buffer_bytes = n_bytes;
    }
    ++row.n_warps;
    row.bytes += n * static_cast<unsigned>(std::popcount(warp.mask));
    if (!is_shared) row.sectors += sectors_of(warp, at, n);
    const int n_lanes = n == 16 ? 8 : n == 8 ? 16 : 32;
    for (int first = 0; first < kLanes; first += n_lanes) {
        const unsigned n_needed =
            is_shared ? conflicts_of(warp, at, n, first, n_lanes) : lines_of(warp, at, first, n_lanes);
        row.wavefronts += n_needed;
        if (is_shared && n_needed > 0) ++row.least;
    }
}

std::vector<Traffic> traffic() {
    std::vector<Traffic> rows;
    for (const auto& [key, row] : table()) rows.push_back(row);
    return rows;
}

void clear_traffic() {
    table().clear();
}

void write_traffic(const std::string& file) {
    std::ofstream out(file);
    out << "kernel\tline\tinstruction\tsource\tspace\tbuffer "
           "bytes\twarps\tbytes\tsectors\twavefronts\tleast\n";
    for (const Traffic& r : traffic())
        out << fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", r.kernel, r.line, r.instruction,
                           r.source, r.space, r.buffer_bytes, r.n_warps, r.bytes, r.sectors, r.wavefronts,
                           r.least);
}

}  // namespace ptx
