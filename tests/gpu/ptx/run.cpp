// Runs the blocks of a launch. Lanes of a warp run an operation together while they are at the same one;
// where they part, those that are behind go on first, so that they run together again.
#include "tests/gpu/ptx/warp.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace ptx {

std::string place_of(const Warp& warp, const Op& op, int lane) {
    const Launch& launch = *warp.block->launch;
    std::string source;
    if (op.source >= 0) source = launch.program->sources()[static_cast<std::size_t>(op.source)] + ", ";
    return fmt::format("{}, block {}, thread {}, {}line {} of the PTX ({})", launch.kernel->name,
                       warp.block->id, warp.first_thread + static_cast<unsigned>(lane), source, op.line,
                       op.text);
}

void fault(const Warp& warp, const Op& op, int lane, const std::string& what) {
    throw Fault(place_of(warp, op, lane) + ": " + what);
}

namespace {

class Grid {
  public:
    Grid(Launch& launch, unsigned seed, unsigned n_at_once)
        : launch_(launch), kernel_(*launch.kernel), random_(seed + static_cast<unsigned>(launch.id)) {
        n_blocks_ = launch.grid.x * launch.grid.y * launch.grid.z;
        // Every block once, without a list of them: i * step + start mod n, with step and n coprime.
        start_ = static_cast<unsigned>(random_()) % n_blocks_;
        step_ = static_cast<unsigned>(random_()) % n_blocks_;
        while (std::gcd(step_, n_blocks_) != 1) ++step_;
        blocks_.swap(spare());
        blocks_.resize(std::min(n_at_once, n_blocks_));
    }
    ~Grid() { blocks_.swap(spare()); }
    Grid(const Grid&) = delete;
    Grid& operator=(const Grid&) = delete;

    void run() {
        std::vector<Block*> under_way;
        for (Block& block : blocks_) {
            begin(block);
            under_way.push_back(&block);
        }
        while (!under_way.empty()) {
            Block*& block = under_way[random_() % under_way.size()];
            if (advance(*block)) continue;
            if (n_begun_ < n_blocks_) {
                begin(*block);
            } else {
                block = under_way.back();
                under_way.pop_back();
            }
        }
    }

  private:
    /// Keeps the registers of the launch before: to make them takes longer than most launches.
    static std::vector<Block>& spare() {
        static std::vector<Block> kept;
        return kept;
    }

    void begin(Block& block) {
        const auto at = static_cast<unsigned>((std::uint64_t{n_begun_} * step_ + start_) % n_blocks_);
        ++n_begun_;
        block.launch = &launch_;
        block.id = at;
        block.epoch = 0;
        block.shared.assign(kernel_.shared_bytes, std::byte{0xff});
        block.cell_shift = kernel_.cell_shift;
        block.cells.assign((kernel_.shared_bytes >> block.cell_shift) + 1, {});
        block.acquired.clear();
        block.found.clear();
        block.fenced.assign(launch_.n_threads, 0);
        block.warps.resize((launch_.n_threads + kLanes - 1) / kLanes);
        for (std::size_t i = 0; i < block.warps.size(); ++i)
            begin(block, block.warps[i], static_cast<unsigned>(i));
    }

    void begin(Block& block, Warp& warp, unsigned index) {
        warp.block = &block;
        warp.first_thread = index * kLanes;
        const unsigned n = std::min<unsigned>(kLanes, launch_.n_threads - warp.first_thread);
        warp.active = n == kLanes ? kAllLanes : (1u << n) - 1;
        warp.waiting = 0;
        warp.at_barrier = -1;
        warp.pc.fill(0);
        if (warp.registers.size() < kernel_.register_bytes) warp.registers.resize(kernel_.register_bytes);
        warp.local.assign(kernel_.local_bytes * kLanes, std::byte{0xff});
        warp.base[0] = warp.registers.data();
        warp.base[1] = const_cast<std::byte*>(kernel_.constants.data());
        const Dim& grid = launch_.grid;
        const unsigned id = block.id;
        for (unsigned i = 0; i < kLanes; ++i) {
            const auto set = [&](Special which, unsigned value) {
                warp.lanes<std::uint32_t>(which * kRegister32)[i] = value;
            };
            set(tid_x, warp.first_thread + i);
            set(laneid, i);
            set(ntid_x, launch_.n_threads);
            set(ctaid_x, id % grid.x), set(ctaid_y, id / grid.x % grid.y), set(ctaid_z, id / grid.x / grid.y);
            set(nctaid_x, grid.x), set(nctaid_y, grid.y), set(nctaid_z, grid.z);
        }
    }

    /// Runs one warp of the block for a while. Returns false at the block's end.
    bool advance(Block& block) {
        unsigned n_ready = 0;
        for (const Warp& warp : block.warps) n_ready += is_ready(warp);
        if (n_ready == 0) return pass_barrier(block);
        auto choice = static_cast<unsigned>(random_()) % n_ready;
        for (Warp& warp : block.warps)
            if (is_ready(warp) && choice-- == 0) {
                run_warp(warp, 64 + static_cast<int>(random_() % 4096));
                break;
            }
        return true;
    }
    static bool is_ready(const Warp& warp) { return warp.active != 0 && warp.at_barrier < 0; }

    /// All warps wait, or are done.
    bool pass_barrier(Block& block) {
        const Warp* first = nullptr;
        for (Warp& warp : block.warps) {
            if (warp.active == 0) continue;
            if (first == nullptr) first = &warp;
            if (warp.at_barrier != first->at_barrier) {
                const auto op = [&](const Warp& w) -> const Op& {
                    return kernel_.ops[std::size_t(w.at_barrier)];
                };
                fault(warp, op(warp), std::countr_zero(warp.active),
                      fmt::format("waits here, thread {} at line {}", first->first_thread, op(*first).line));
            }
        }
        if (first == nullptr) return false;
        ++block.epoch;
        for (Warp& warp : block.warps) {
            if (warp.active == 0) continue;
            for_lanes(warp.active, [&](int lane) { warp.pc[std::size_t(lane)] = warp.at_barrier + 1; });
            warp.at_barrier = -1;
        }
        return true;
    }

    /// Runs about n operations, until all lanes wait at a barrier, or the end.
    void run_warp(Warp& warp, int n) {
        while (n > 0 && warp.active != 0 && warp.at_barrier < 0) {
            const std::uint32_t ready = warp.active & ~warp.waiting;
            if (ready == 0) {
                if (!release(warp)) report_parted(warp);
                continue;
            }
            std::int32_t pc = warp.pc[std::size_t(std::countr_zero(ready))];
            const bool any = random_() % 8 == 0;  // not always those that are behind
            if (!any) for_lanes(ready, [&](int lane) { pc = std::min(pc, warp.pc[std::size_t(lane)]); });
            std::uint32_t group = 0;
            std::int32_t next = std::numeric_limits<std::int32_t>::max();  // where others are
            for_lanes(warp.active, [&](int lane) {
                const std::int32_t at = warp.pc[std::size_t(lane)];
                if (at == pc)
                    group |= 1u << lane;
                else if (at > pc)
                    next = std::min(next, at);
            });
            warp.waiting &= ~group;
            n -= run_group(warp, group, pc, next, any && group != warp.active ? std::min(n, 64) : n);
        }
    }

    /// Runs lanes that are at the same operation until they part, wait, end, join others or have run n
    /// operations. Returns how many they ran.
    int run_group(Warp& warp, std::uint32_t group, std::int32_t pc, std::int32_t next, int n) {
        const Op* ops = kernel_.ops.data();
        int n_run = 0;
        const auto leave = [&](std::uint32_t lanes, std::int32_t at) {
            for_lanes(lanes, [&](int lane) { warp.pc[std::size_t(lane)] = at; });
        };
        while (n_run < n && (pc < next || n_run == 0)) {
            const Op& op = ops[pc];
            ++n_run;
            std::uint32_t mask = group;
            if (op.guard != Op::kNone) {
                const std::uint32_t yes = *warp.lanes<std::uint32_t>(op.guard);
                mask &= op.guard_inverted ? ~yes : yes;
            }
            switch (op.kind) {
                case Kind::plain:
                    warp.mask = mask;
                    if (mask != 0) op.run(warp, op);
                    ++pc;
                    break;
                case Kind::branch:
                    if (mask == group) {
                        pc = op.target;
                        if (group != warp.active) {  // others may be there
                            leave(group, pc);
                            return n_run;
                        }
                    } else if (mask == 0) {
                        ++pc;
                    } else {
                        leave(mask, op.target);
                        leave(group & ~mask, pc + 1);
                        return n_run;
                    }
                    break;
                case Kind::exit:
                    warp.active &= ~mask;
                    leave(group & ~mask, pc + 1);
                    return n_run;
                case Kind::barrier:
                    if (mask != group) fault(warp, op, std::countr_zero(group), "a barrier for some lanes");
                    if (group == warp.active) {
                        warp.at_barrier = pc;
                        return n_run;
                    }
                    leave(group, pc);
                    warp.waiting |= group;
                    return n_run;
                case Kind::collective:
                    if (mask == 0) {
                        ++pc;
                        break;
                    }
                    if (mask != members(warp, op, group)) {
                        leave(group, pc);
                        warp.waiting |= group;
                        return n_run;
                    }
                    warp.mask = mask;
                    op.run(warp, op);
                    ++pc;
                    break;
            }
        }
        leave(group, pc);
        return n_run;
    }

    /// Lets lanes go on that wait at one operation and are all there by now.
    bool release(Warp& warp) const {
        for (std::uint32_t left = warp.active; left != 0;) {
            const std::int32_t pc = warp.pc[std::size_t(std::countr_zero(left))];
            std::uint32_t group = 0;
            for_lanes(left, [&](int lane) {
                group |= static_cast<std::uint32_t>(warp.pc[std::size_t(lane)] == pc) << lane;
            });
            const Op& op = kernel_.ops[std::size_t(pc)];
            if (group == (op.kind == Kind::barrier ? warp.active : members(warp, op, group))) {
                warp.waiting &= ~group;
                return true;
            }
            left &= ~group;
        }
        return false;
    }

    /// The lanes that must take part.
    static std::uint32_t members(const Warp& warp, const Op& op, std::uint32_t group) {
        if (!op.names_members) return warp.active;
        return warp.lanes<std::uint32_t>(op.at[op.n_elements - 1u])[std::countr_zero(group)] & warp.active;
    }

    [[noreturn]] void report_parted(const Warp& warp) const {
        const int lane = std::countr_zero(warp.active);
        const std::int32_t pc = warp.pc[std::size_t(lane)];
        int other = lane;
        for_lanes(warp.active, [&](int i) {
            if (warp.pc[std::size_t(i)] != pc) other = i;
        });
        const Op& op = kernel_.ops[std::size_t(pc)];
        if (other == lane) fault(warp, op, lane, "lanes that should take part are not there");
        fault(warp, op, lane,
              fmt::format("waits for its warp, and thread {} at line {}",
                          warp.first_thread + static_cast<unsigned>(other),
                          kernel_.ops[std::size_t(warp.pc[std::size_t(other)])].line));
    }

    Launch& launch_;
    const Kernel& kernel_;
    std::minstd_rand random_;
    unsigned n_blocks_ = 0, n_begun_ = 0, start_ = 0, step_ = 1;
    std::vector<Block> blocks_;
};

}  // namespace

void run_grid(Launch& launch, unsigned seed, unsigned n_at_once) {
    Grid(launch, seed, n_at_once).run();
}

}  // namespace ptx
