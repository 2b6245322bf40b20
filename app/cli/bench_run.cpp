#include "app/cli/bench_run.h"

#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/resource_use.h"
#include "engine/device/make_backend.h"
#include "engine/device/open_cuda.h"
#include "engine/model/kv_default.h"
#include "engine/model/kv_sharing.h"

#include <algorithm>

namespace keyhole {

namespace {

constexpr std::int64_t kCopyBytes = std::int64_t{1} << 30;

/// Throws Error(no_memory) with the numbers if the host has not this many free bytes.
void check_host_memory(const std::string& what, std::int64_t needed, const char* remedy) {
    const std::int64_t free = free_memory_bytes();
    if (free == 0 || needed <= free) return;
    const auto gb = [](std::int64_t bytes) { return 1e-9 * static_cast<double>(bytes); };
    fail(ErrorCode::no_memory, "bench: {} needs {:.1f} GB and {:.1f} GB are free, {:.1f} GB are missing; {}",
         what, gb(needed), gb(free), gb(needed - free), remedy);
}

void open_bandwidth(const BenchRun& options, BenchedModel& benched) {
    benched.on_device = benched.backend->name().starts_with("cuda");
    if (benched.on_device) {
        std::string reason;
        auto device = open_cuda_device(cuda_module_path(), options.run.device, reason);
        if (device == nullptr) fail(ErrorCode::device, "bench: {}", reason);
        benched.bandwidth = device_copy(std::move(device), kCopyBytes);
    } else {
        benched.bandwidth = host_read(options.run.n_threads);
    }
}

}  // namespace

DType BenchRun::weight_type() const {
    const auto found = std::ranges::find(kWeightTypes, dtype, dtype_name);
    KH_ASSERT(found != kWeightTypes.end(), "--dtype {}", dtype);  // the option takes no other
    return *found;
}

BenchedModel benched_shape(const BenchRun& options, const ModelShape& shape) {
    BenchedModel benched;
    const DType dtype = options.weight_type();
    const bool device_makes_it = options.run.backend == "cuda" && !is_quantised(dtype);
    if (!device_makes_it)
        check_host_memory(fmt::format("{} as {}", shape.name, options.dtype),
                          seeded_weight_bytes(shape, dtype),
                          "take --layers N for a part of it, a smaller --dtype or another shape");
    benched.model =
        make_seeded_model(shape, dtype, 1, device_makes_it ? SeededStorage::unmade : SeededStorage::own);
    std::string notice;
    const cuda::ProductOptions products = options.products();
    benched.backend = make_backend(benched.model, options.backend_options(), &notice, &products);
    benched.backend_text = benched.backend->name() + (notice.empty() ? "" : " (" + notice + ")");
    open_bandwidth(options, benched);
    return benched;
}

BenchedModel benched_model(const BenchRun& options) {
    if (!options.shape.empty()) {
        ModelShape shape = shape_of(options.shape);
        if (options.scale.layers > 0)
            shape.config.n_layers = std::min(shape.config.n_layers, options.scale.layers);
        BenchedModel benched = benched_shape(options, shape);
        note_precision(*benched.backend);
        return benched;
    }
    LoadedModel loaded = load_for_run(options.run);
    BenchedModel benched{std::move(loaded.model), std::move(loaded.backend), std::move(loaded.backend_text),
                         nullptr, false};
    open_bandwidth(options, benched);
    return benched;
}

ContenderSetup contender_setup(const std::string& spec, int n_lanes, int context, int n_tokens) {
    const LaneSpec lane = parse_lane_spec(spec);
    if (lane.sharing.kind != KvSharing::Kind::own)
        fail(ErrorCode::wrong_use,
             "bench: lane '{}' shares KV heads otherwise than the model; bench a folder that keyhole convert "
             "makes",
             spec);
    ContenderSetup setup;
    setup.name = spec;
    setup.policies.assign(to_index(n_lanes), resolve(lane.policy, context, n_tokens));
    setup.context = context;
    return setup;
}

Contender& add_contender(std::deque<Contender>& contenders, const BenchedModel& benched,
                         ContenderSetup setup) {
    if (!benched.on_device) {
        const auto of_token = [&](KvType type) {
            return kv_bytes_per_token(benched.model->config(), kv_type_for(type, *benched.model));
        };
        std::int64_t bytes = setup.context * of_token(KvType::f32);  // the prompt, before any eviction
        for (const ResolvedPolicy& policy : setup.policies)
            bytes += std::min<std::int64_t>(policy.stored, std::int64_t{setup.context} + policy.horizon) *
                     of_token(policy.kv_dtype);
        check_host_memory(
            fmt::format("{} x {} at {} tokens", setup.policies.size(), setup.name, setup.context), bytes,
            "take a smaller --batch, --context or budget");
    }
    return contenders.emplace_back(*benched.model, *benched.backend, std::move(setup));
}

std::vector<std::string> specs_of(const BenchRun& options) {
    return options.run.lanes.empty() ? std::vector<std::string>{"full"} : options.run.lanes;
}

BenchReport run_rounds(const BenchRun& options, BenchedModel& benched, std::deque<Contender>& contenders,
                       bool parts, Progress& progress, double begin, double end) {
    std::vector<Contender*> all;
    for (Contender& c : contenders) all.push_back(&c);
    BenchOptions how{options.run.n_tokens, options.rounds, parts,
                     [&](double share) { progress.update(begin + share * (end - begin)); }};
    return run_bench(*benched.model, *benched.backend, all, *benched.bandwidth, how);
}

nlohmann::json json_of_line(const BenchLine& line, const BenchLine& first) {
    const SpeedUp up = speed_up(line, first);
    nlohmann::json out = {{"spec", line.name},
                          {"lanes", line.n_lanes},
                          {"context", line.context},
                          {"ms_per_step", line.ms_per_step},
                          {"tokens_per_s", line.tokens_per_s},
                          {"p99_over_p50", line.p99_over_p50},
                          {"bytes_per_step", line.bytes_per_step},
                          {"bytes_per_token", line.bytes_per_step / line.n_lanes},
                          {"kv_bytes", line.kv_bytes},
                          {"allocated_bytes", line.allocated_bytes},
                          {"gb_per_s", line.gb_per_s},
                          {"bandwidth_gb_per_s", line.bandwidth},
                          {"share_of_bandwidth", line.share_of_bandwidth},
                          {"speed_up", up.measured},
                          {"speed_up_by_bytes", up.by_bytes}};
    if (line.has_parts) {
        const double steps = static_cast<double>(std::max<std::int64_t>(1, line.parts.n_steps));
        out["ms_of_parts"] = {{"linear", 1e3 * line.parts.linear / steps},
                              {"attention", 1e3 * line.parts.attention / steps},
                              {"scoring", 1e3 * line.parts.scoring / steps},
                              {"eviction", 1e3 * line.parts.eviction / steps},
                              {"rest", 1e3 * line.parts.rest / steps}};
    }
    return out;
}

nlohmann::json json_of_graphs(const LaunchCounts& counts) {
    return {{"steps", counts.captures - counts.new_graphs},
            {"graphs", counts.graphs},
            {"failed", counts.failed_graphs}};
}

void print_graphs(const LaunchCounts& counts) {
    print_out("{} of {} steps that repeated ran as a graph{}\n", counts.graphs,
              counts.captures - counts.new_graphs,
              counts.failed_graphs > 0
                  ? fmt::format("; THE DEVICE FAILED TO MAKE {}, so these times are those of single launches",
                                counts.failed_graphs)
                  : "");
}

void print_step_parts(const std::vector<BenchLine>& lines) {
    if (std::none_of(lines.begin(), lines.end(), [](const BenchLine& l) { return l.has_parts; })) return;
    print_out("\n{:<44} {:>9} {:>9} {:>9} {:>9} {:>9}   ms a step, timed part by part\n", "", "linear",
              "attention", "scoring", "eviction", "rest");
    for (const BenchLine& l : lines) {
        const double scale = 1e3 / static_cast<double>(std::max<std::int64_t>(1, l.parts.n_steps));
        print_out("{:<44} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f}\n", l.name, scale * l.parts.linear,
                  scale * l.parts.attention, scale * l.parts.scoring, scale * l.parts.eviction,
                  scale * l.parts.rest);
    }
    print_out("\n{:<44} {:>9} {:>9} {:>9} {:>9}\n", "", "reads", "MB a step", "GB/s", "share");
    for (const BenchLine& l : lines)
        for (const PartRead& read : part_reads(l))
            print_out("{:<44} {:>9} {:>9.2f} {:>9.2f} {:>8.0f}%\n", l.name, read.part,
                      1e-6 * static_cast<double>(read.n_bytes), read.gb_per_s, 100 * read.share_of_bandwidth);
}

}  // namespace keyhole
