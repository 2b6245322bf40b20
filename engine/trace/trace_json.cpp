#include "engine/trace/trace_json.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/policy/lane_spec.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace keyhole {

namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kFormat = "keyhole-trace";
constexpr int kVersion = 2;          // 1: no branches, forks, pins and hidden positions, and no start
constexpr int kLargest = 1 << 20;    // no count of layers or tokens comes near
constexpr int kMostHeads = 1 << 16;  // of all layers

/// NaN is null, infinities are words: JSON has neither.
Json number(double value) {
    if (std::isnan(value)) return nullptr;
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
}

double to_double(const Json& json) {
    if (json.is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (json.is_string()) {
        if (json == "inf") return std::numeric_limits<double>::infinity();
        if (json == "-inf") return -std::numeric_limits<double>::infinity();
        throw std::runtime_error("a number is the text " + json.dump());
    }
    return json.get<double>();
}

float to_float(const Json& json) {
    return static_cast<float>(to_double(json));
}

int to_int(const Json& json, std::int64_t low, std::int64_t high) {
    if (!json.is_number_integer())
        throw std::runtime_error("a whole number was expected instead of " + json.dump());
    const auto value = json.get<std::int64_t>();
    if (value < low || value > high)
        throw std::runtime_error(fmt::format("{} is not within {} to {}", value, low, high));
    return static_cast<int>(value);
}

/// A conversion of the library's would take fractions and numbers of any size.
std::int64_t to_count(const Json& json) {
    if (!json.is_number_unsigned() || json.get<std::uint64_t>() >> 63 != 0)
        throw std::runtime_error("a count was expected instead of " + json.dump());
    return json.get<std::int64_t>();
}

std::vector<int> to_ints(const Json& json) {
    std::vector<int> out;
    for (const Json& one : json) out.push_back(to_int(one, -1, 1 << 30));
    return out;
}

template <class Enum>
Enum to_enum(const Json& json, Enum last) {
    return static_cast<Enum>(to_int(json, 0, static_cast<int>(last)));
}

std::string hex(const std::string& bytes) {
    std::string out;
    for (char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return out;
}

std::string unhex(const std::string& text) {
    const auto digit = [](char c) {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        throw std::runtime_error("bytes are not hexadecimal");
    };
    if (text.size() % 2) throw std::runtime_error("bytes are not hexadecimal");
    std::string out;
    for (std::size_t i = 0; i < text.size(); i += 2)
        out += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
    return out;
}

Json run_json(const RunInfo& run) {
    const ModelConfig& c = run.config;
    Json bytes = Json::array();
    for (const std::string& token : run.token_bytes) bytes.push_back(hex(token));
    return {{"model", {{"path", run.model_path}, {"hash", run.model_hash}}},
            {"config",
             {{"family", c.family},
              {"n_layers", c.n_layers},
              {"n_heads", c.n_heads},
              {"n_kv_heads", c.n_kv_heads},
              {"n_kv_layers", run.layout.n_kv_heads() / std::max(1, c.n_kv_heads)},
              {"merged", c.merged},
              {"head_dim", c.head_dim},
              {"d_model", c.d_model},
              {"d_ff", c.d_ff},
              {"n_vocab", c.n_vocab},
              {"n_ctx", c.n_ctx},
              {"window", c.window},
              {"norm_eps", c.norm_eps},
              {"rope_theta", c.rope_theta},
              {"tied", c.tied},
              {"bos", c.bos},
              {"eos", c.eos}}},
            {"backend", run.backend},
            {"prompt", run.prompt},
            {"prompt_bytes", hex(run.prompt)},
            {"prompt_tokens", run.prompt_tokens},
            {"seed", run.seed},
            {"n_generate", run.n_generate},
            {"start",
             {{"lanes", run.start.lanes},
              {"sampling", run.start.sampling},
              {"follow", run.start.follow},
              {"ignore_eos", run.start.ignore_eos},
              {"tokens_given", run.start.tokens_given},
              {"forced", run.start.forced}}},
            {"token_display", run.token_display},
            {"token_bytes", std::move(bytes)}};
}

std::shared_ptr<const RunInfo> parse_run(const Json& json) {
    // Ids of traces never meet those of sessions.
    static std::atomic<std::uint64_t> next{std::uint64_t{1} << 63};
    auto run = std::make_shared<RunInfo>();
    run->id = next++;
    run->model_path = json.at("model").at("path");
    run->model_hash = json.at("model").at("hash");
    const Json& c = json.at("config");
    run->config.family = c.at("family");
    run->config.n_layers = to_int(c.at("n_layers"), 1, kLargest);
    run->config.n_heads = to_int(c.at("n_heads"), 1, kLargest);
    run->config.n_kv_heads = to_int(c.at("n_kv_heads"), 1, kLargest);
    run->config.n_kv_layers = c.contains("n_kv_layers") ? to_int(c.at("n_kv_layers"), 1, run->config.n_layers)
                                                        : run->config.n_layers;
    run->config.merged = c.value("merged", false);
    if (std::int64_t{run->config.n_layers} * run->config.n_heads > kMostHeads ||
        run->config.n_heads % run->config.n_kv_heads != 0)
        throw std::runtime_error("layers, heads and KV heads do not fit together");
    run->config.head_dim = to_int(c.at("head_dim"), 0, kLargest);
    run->config.d_model = to_int(c.at("d_model"), 0, kLargest);
    run->config.d_ff = to_int(c.at("d_ff"), 0, 1 << 30);
    run->config.n_vocab = to_int(c.at("n_vocab"), 0, 1 << 30);
    run->config.n_ctx = to_int(c.at("n_ctx"), 0, 1 << 30);
    if (c.contains("window"))  // not in older files
        for (const Json& window : c.at("window")) run->config.window.push_back(to_int(window, 0, 1 << 30));
    if (!run->config.window.empty() &&
        run->config.window.size() != static_cast<std::size_t>(run->config.n_layers))
        throw std::runtime_error("the sliding windows are not one a layer");
    run->config.norm_eps = to_float(c.at("norm_eps"));
    run->config.rope_theta = to_float(c.at("rope_theta"));
    run->config.tied = c.at("tied");
    run->config.bos = to_int(c.at("bos"), -1, 1 << 30);
    run->config.eos = to_ints(c.at("eos"));
    run->layout = layout_of(run->config);
    run->backend = json.at("backend");
    run->prompt = unhex(json.at("prompt_bytes"));
    run->prompt_tokens = to_ints(json.at("prompt_tokens"));
    if (run->prompt_tokens.empty() || run->prompt_tokens.size() > kLargest)
        throw std::runtime_error("the prompt has no tokens");
    if (!json.at("seed").is_number_unsigned()) throw std::runtime_error("the seed is no whole number");
    run->seed = json.at("seed");
    run->n_generate = to_int(json.at("n_generate"), 0, 1 << 30);
    if (json.contains("start")) {
        const Json& start = json.at("start");
        run->start.lanes = start.at("lanes").get<std::vector<std::string>>();
        run->start.sampling = start.at("sampling");
        run->start.follow = start.at("follow");
        run->start.ignore_eos = start.at("ignore_eos");
        run->start.tokens_given = start.value("tokens_given", false);  // neither is in older files
        if (start.contains("forced")) run->start.forced = to_ints(start.at("forced"));
    }
    run->token_display = json.at("token_display").get<std::vector<std::string>>();
    for (const Json& token : json.at("token_bytes")) run->token_bytes.push_back(unhex(token));
    return run;
}

Json lane_info_json(const LaneInfo& info) {
    // The policy follows from the spec.
    Json out = {{"id", info.id}, {"spec", info.spec}, {"effective", info.effective}};
    if (!info.kv.empty())
        out["kv"] = {{"name", info.kv}, {"merged", info.merged}, {"token_bytes", info.token_bytes}};
    if (info.layout != nullptr) {
        int n_owners = 0;
        for (int l = 0; l < info.layout->n_layers(); ++l) n_owners += info.layout->owns(l) ? 1 : 0;
        out["kv"]["layers"] = n_owners;
        out["kv"]["heads"] = info.layout->n_kv_heads() / n_owners;
    }
    if (info.forked_from >= 0) {
        out["forked"] = {{"from", info.forked_from}, {"at", info.forked_at}};
        if (info.relived) out["forked"]["relived"] = true;
    }
    return out;
}

std::shared_ptr<const LaneInfo> parse_lane_info(const Json& json, const RunInfo& run) {
    constexpr std::int64_t kInt = 0x7fffffff;
    auto info = std::make_shared<LaneInfo>();
    info->id = to_int(json.at("id"), 0, kInt);
    info->spec = json.at("spec");
    info->effective = json.at("effective");
    if (json.contains("forked") &&
        json.at("forked").contains("from")) {  // older files may say "relived" alone
        info->forked_from = to_int(json.at("forked").at("from"), 0, kInt);
        info->forked_at = to_int(json.at("forked").at("at"), 0, kLargest);
        info->relived = json.at("forked").value("relived", false);
    }
    if (json.contains("kv")) {
        const Json& kv = json.at("kv");
        info->kv = kv.at("name");
        info->merged = kv.at("merged");
        info->token_bytes = kv.at("token_bytes");
        if (kv.contains("layers")) {
            const int layers = to_int(kv.at("layers"), 1, run.config.n_layers),
                      heads = to_int(kv.at("heads"), 1, run.config.n_heads);
            if (run.config.n_heads % heads != 0)
                throw std::runtime_error("query heads and KV heads of a lane do not fit together");
            info->layout = std::make_shared<const KvLayout>(
                KvLayout::shared(run.config.n_layers, run.config.n_heads, layers, heads));
        }
    }
    const KvLayout& layout = info->layout != nullptr ? *info->layout : run.layout;
    info->policy =
        resolve(parse_lane_spec(info->spec).policy, run.n_prompt(), run.n_generate, head_grid(layout));
    return info;
}

Json branches_json(const std::vector<Branch>& branches) {
    Json list = Json::array();
    for (const Branch& branch : branches) {
        Json commands = Json::array();
        for (const RunCommand& command : branch.commands) commands.push_back({command.row, command.text});
        list.push_back({{"id", branch.id},
                        {"parent", branch.parent},
                        {"from_row", branch.from_row},
                        {"last_row", branch.last_row},
                        {"commands", std::move(commands)}});
    }
    return list;
}

std::vector<Branch> parse_branches(const Json& json) {
    constexpr std::int64_t kInt = 0x7fffffff;
    std::vector<Branch> branches;
    for (const Json& from : json) {
        Branch& branch = branches.emplace_back();
        branch.id = to_int(from.at("id"), 0, kInt);
        branch.parent = to_int(from.at("parent"), -1, kInt);
        branch.from_row = to_int(from.at("from_row"), 0, kLargest);
        branch.last_row = to_int(from.at("last_row"), branch.from_row, kLargest);
        for (const Json& command : from.at("commands"))
            branch.commands.push_back({to_int(command.at(0), 0, kLargest), command.at(1)});
    }
    return branches;
}

constexpr std::array kMeasures = {&RowMeasures::retained_mass, &RowMeasures::cosine_ideal,
                                  &RowMeasures::cosine_full, &RowMeasures::output_similarity,
                                  &RowMeasures::sink_share};

/// Empty where nothing was measured.
Json measures_json(const RowMeasures& measures) {
    Json out = Json::array();
    bool any = false;
    for (const auto member : kMeasures) {
        out.push_back(number(measures.*member));
        any = any || !std::isnan(measures.*member);
    }
    return any ? out : Json::array();
}

Json record_json(const LaneRecord& lane, std::size_t info) {
    Json top = Json::array();
    for (const TopToken& token : lane.top) top.push_back({token.id, number(token.log_prob)});
    Json out = {{"lane", info},
                {"token", lane.token},
                {"log_prob", number(lane.log_prob)},
                {"predicted", lane.predicted},
                {"entropy", number(lane.entropy)},
                {"kl", lane.kl ? Json(Json::array({number(*lane.kl)})) : Json(nullptr)},
                {"agrees", lane.agrees ? Json(*lane.agrees) : Json(nullptr)},
                {"tau", number(lane.tau)},
                {"stored_tokens", lane.use.stored_tokens},
                {"stored_bytes", lane.use.stored_bytes},
                {"allocated_bytes", lane.use.allocated_bytes},
                {"attended_tokens", lane.attended_tokens},
                {"top", std::move(top)}};
    if (lane.rows) out["rows"] = (lane.rows->attention.empty() ? 0 : 1) + (lane.rows->scores.empty() ? 0 : 2);
    if (Json measures = measures_json(lane.measures); !measures.empty()) out["measures"] = measures;
    if (lane.shadow) out["shadow"] = true;
    if (lane.use.shadow_bytes > 0) out["shadow_bytes"] = lane.use.shadow_bytes;
    if (lane.ended) out["ended"] = true;
    if (!lane.failure.empty()) out["failure"] = lane.failure;
    return out;
}

LaneRecord parse_record(const Json& json, const std::vector<std::shared_ptr<const LaneInfo>>& infos,
                        RowParts& parts) {
    LaneRecord lane;
    lane.info = infos.at(static_cast<std::size_t>(to_int(json.at("lane"), 0, kLargest)));
    lane.token = to_int(json.at("token"), 0, 1 << 30);
    lane.log_prob = to_float(json.at("log_prob"));
    lane.predicted = to_int(json.at("predicted"), 0, 1 << 30);
    lane.entropy = to_float(json.at("entropy"));
    if (!json.at("kl").is_null()) lane.kl = to_float(json.at("kl").at(0));
    if (!json.at("agrees").is_null()) lane.agrees = json.at("agrees").get<bool>();
    lane.tau = to_float(json.at("tau"));
    lane.use.stored_tokens = to_count(json.at("stored_tokens"));
    lane.use.stored_bytes = to_count(json.at("stored_bytes"));
    lane.use.allocated_bytes = to_count(json.at("allocated_bytes"));
    lane.attended_tokens = to_count(json.at("attended_tokens"));
    for (const Json& token : json.at("top"))
        lane.top.push_back({to_int(token.at(0), -1, 1 << 30), to_float(token.at(1))});
    if (json.contains("rows")) {
        const int bits = to_int(json.at("rows"), 0, 3);
        parts = {(bits & 1) != 0, (bits & 2) != 0, true};
    }
    if (json.contains("measures"))
        for (std::size_t i = 0; i < kMeasures.size(); ++i)
            lane.measures.*kMeasures[i] = to_float(json.at("measures").at(i));
    parts.shadow = json.value("shadow", false);
    if (json.contains("shadow_bytes")) lane.use.shadow_bytes = to_count(json.at("shadow_bytes"));
    lane.ended = json.value("ended", false);
    lane.failure = json.value("failure", std::string());
    return lane;
}

ParsedTrace parse(const Json& json, std::shared_ptr<const RunInfo> run) {
    if (json.at("format") != kFormat) throw std::runtime_error("its format is not " + std::string(kFormat));
    const Json& version = json.at("version");
    if (version != 1 && version != kVersion)
        throw std::runtime_error(
            fmt::format("it has version {}, this Keyhole reads versions 1 to {}", version.dump(), kVersion));
    if (!run) run = parse_run(json.at("run"));
    std::vector<std::shared_ptr<const LaneInfo>> infos;
    for (const Json& info : json.at("lane_settings")) infos.push_back(parse_lane_info(info, *run));
    std::vector<std::shared_ptr<const std::vector<Branch>>> branches;
    if (json.contains("other_branches"))
        for (const Json& list : json.at("other_branches"))
            branches.push_back(std::make_shared<const std::vector<Branch>>(parse_branches(list)));
    ParsedTrace trace;
    int last_row = run->n_prompt() - 2;
    for (const Json& from : json.at("steps")) {
        auto step = std::make_shared<StepTrace>();
        step->run = run;
        step->row = to_int(from.at("row"), last_row + 1, kLargest);
        last_row = step->row;
        step->step_ms = to_float(from.at("ms"));
        if (from.contains("branch")) step->branch = to_int(from.at("branch"), 0, 0x7fffffff);
        if (from.contains("others"))
            step->other_branches =
                branches.at(static_cast<std::size_t>(to_int(from.at("others"), 0, kLargest)));
        step->commands = from.at("commands").get<std::vector<std::string>>();
        std::vector<RowParts> parts(from.at("lanes").size());
        for (std::size_t i = 0; i < parts.size(); ++i)
            step->lanes.push_back(parse_record(from.at("lanes")[i], infos, parts[i]));
        trace.steps.push_back(std::move(step));
        trace.parts.push_back(std::move(parts));
    }
    return trace;
}

}  // namespace

std::string format_trace_json(const StepList& steps, bool with_run) {
    Json out = {{"format", kFormat}, {"version", kVersion}};
    if (with_run && !steps.empty()) out["run"] = run_json(*steps.front()->run);
    std::vector<const LaneInfo*> infos;
    Json list = Json::array(), branches = Json::array();
    const std::vector<Branch>* last_branches = nullptr;
    for (const auto& step : steps) {
        Json lanes = Json::array();
        for (const LaneRecord& lane : step->lanes) {
            const auto it = std::find(infos.begin(), infos.end(), lane.info.get());
            lanes.push_back(record_json(lane, static_cast<std::size_t>(it - infos.begin())));
            if (it == infos.end()) infos.push_back(lane.info.get());
        }
        Json& out_step = list.emplace_back(Json{{"row", step->row},
                                                {"branch", step->branch},
                                                {"ms", number(step->step_ms)},
                                                {"commands", step->commands},
                                                {"lanes", std::move(lanes)}});
        if (!step->other_branches) continue;
        if (step->other_branches.get() != last_branches)
            branches.push_back(branches_json(*step->other_branches));
        last_branches = step->other_branches.get();
        out_step["others"] = branches.size() - 1;
    }
    out["other_branches"] = std::move(branches);
    out["lane_settings"] = Json::array();
    for (const LaneInfo* info : infos) out["lane_settings"].push_back(lane_info_json(*info));
    out["steps"] = std::move(list);
    return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ParsedTrace parse_trace_json(std::string_view text, std::string_view name,
                             std::shared_ptr<const RunInfo> run) {
    try {
        if (!is_shallow_json(text)) throw std::runtime_error("its values lie in one another too deep");
        return parse(Json::parse(text), std::move(run));
    } catch (const std::exception& error) {
        fail(ErrorCode::bad_file, "{} cannot be read as a trace: {}", name, shown_text(error.what()));
    }
}

void check_lanes(const StepList& steps, std::string_view name) {
    std::map<int, const KvLayout*> layouts;  // by lane id
    for (const auto& step : steps) {
        std::set<int> here;
        for (const LaneRecord& lane : step->lanes) {
            const LaneInfo& info = *lane.info;
            const KvLayout* layout = info.layout != nullptr ? info.layout.get() : &step->run->layout;
            const bool is_copy = info.forked_from >= 0 && !info.relived && layouts.contains(info.forked_from);
            const auto known =
                layouts.emplace(info.id, is_copy ? layouts.at(info.forked_from) : layout).first;
            if (!here.insert(info.id).second || !(*known->second == *layout))
                fail(ErrorCode::bad_file, "{} is damaged: lane {} of row {} is not the lane it was", name,
                     info.id, step->row);
        }
    }
}

}  // namespace keyhole
