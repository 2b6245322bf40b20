#include "engine/trace/trace_json.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_field.h"
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
constexpr int kVersion = 3;          // 1: no branches, forks, pins, hidden positions or start
constexpr int kLargest = 1 << 20;    // far above any count of layers or tokens
constexpr int kMostHeads = 1 << 16;  // of all layers
constexpr std::uint64_t kMostJson = std::uint64_t{4} << 30;
constexpr int kWide = 1 << 30, kInt = 0x7fffffff;
constexpr std::size_t kMostTop = 1000;
constexpr int kMostLook = 1 << 20;
// Most bytes of names, specs and commands; of a token; of messages and prompts.
constexpr std::size_t kMostName = 16 << 10, kMostToken = 64 << 10, kMostProse = std::size_t{1} << 30;
constexpr std::size_t kMostSpec = (std::size_t{1} << 20) + kMostName;  // a spec, or a command with one
// Limits of the cache: their sums over all rows stay within 64 bits.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 42, kMostStored = std::int64_t{1} << 36;

/// Writes NaN as null and infinities as words, since JSON has neither.
Json number(double value) {
    if (std::isnan(value)) return nullptr;
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
}

std::string hex(const std::string& bytes) {
    std::string out;
    for (char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return out;
}

std::string unhex(const JsonField& field, std::size_t most_bytes) {
    const std::string& text = field.text(2 * most_bytes);
    const auto digit = [&](char c) {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        field.wanted("bytes as pairs of hexadecimal digits");
    };
    if (text.size() % 2) field.wanted("bytes as pairs of hexadecimal digits");
    std::string out;
    out.reserve(text.size() / 2);
    for (std::size_t i = 0; i < text.size(); i += 2)
        out += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
    return out;
}

std::vector<int> integers(const JsonField& list, int low, int high, std::size_t most) {
    std::vector<int> out;
    for (std::size_t i = 0, n = list.size(most); i < n; ++i) out.push_back(list.at(i).integer(low, high));
    return out;
}

std::vector<std::string> texts(const JsonField& list, std::size_t most_bytes) {
    std::vector<std::string> out;
    for (std::size_t i = 0, n = list.size(); i < n; ++i) out.push_back(list.at(i).text(most_bytes));
    return out;
}

bool flag_of(const JsonField& object, const char* key) {
    const std::optional<JsonField> found = object.find(key);
    return found && found->flag();
}

Json run_json(const RunInfo& run) {
    const ModelConfig& c = run.config;
    Json bytes = Json::array();
    for (const std::string& token : run.token_bytes) bytes.push_back(hex(token));
    Json json = {{"model", {{"path", run.model_path}, {"hash", run.model_hash}}},
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
                   {"has_sinks", c.has_sinks},
                   {"n_experts", c.n_experts},
                   {"n_experts_used", c.n_experts_used},
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
    if (!run.start.chat.empty()) json["start"]["chat"] = run.start.chat;
    if (const ChatParts& parts = run.start.chat_parts; !(parts == ChatParts{}))
        json["start"]["chat_parts"] = {hex(parts.opening), hex(parts.user_end), hex(parts.answer_end),
                                       hex(parts.end_token)};
    if (const std::optional<AnswerEnd>& end = run.start.answer_end) {
        Json stop = Json::array();
        for (const std::string& text : end->stop) stop.push_back(hex(text));
        json["start"]["answer_end"] = {{"stop", std::move(stop)}, {"max_tokens", end->max_tokens}};
    }
    if (!run.start.right_answer.empty()) json["start"]["right_answer"] = hex(run.start.right_answer);
    if (!run.start.watch.empty()) json["start"]["watch"] = hex(run.start.watch);
    if (!run.start.looks.empty()) json["start"]["looks"] = run.start.looks;
    return json;
}

/// Parses the vocabulary, whose size limits the token ids in the rest of the run.
void parse_vocabulary(const JsonField& json, RunInfo& run) {
    const JsonField display = json["token_display"], bytes = json["token_bytes"];
    const auto n_vocab = to_index(run.config.n_vocab);
    for (const JsonField& list : {display, bytes})
        if (list.size() != n_vocab)
            list.wanted(fmt::format("one for each of the {} tokens (config.n_vocab)", n_vocab));
    run.token_display = texts(display, kMostToken);
    for (std::size_t i = 0; i < n_vocab; ++i) run.token_bytes.push_back(unhex(bytes.at(i), kMostToken));
}

/// Returns the text of a lane spec. Who parses it later no longer knows the file and the member.
std::string checked_spec(const JsonField& field) {
    const std::string& spec = field.text(kMostSpec);
    try {
        (void)parse_stored_lane_spec(spec);
    } catch (const Error& error) {
        field.bad(error.what());
    }
    return spec;
}

void parse_config(const JsonField& c, ModelConfig& config) {
    config.family = c["family"].text(kMostName);
    config.n_layers = c["n_layers"].integer(1, kMostHeads);
    config.n_heads = c["n_heads"].integer(1, kMostHeads / config.n_layers);
    config.n_kv_heads = c["n_kv_heads"].integer(1, config.n_heads);
    if (config.n_heads % config.n_kv_heads != 0)
        c["n_kv_heads"].wanted(fmt::format("a divisor of the {} query heads", config.n_heads));
    const std::optional<JsonField> n_kv_layers = c.find("n_kv_layers");
    config.n_kv_layers = n_kv_layers ? n_kv_layers->integer(1, config.n_layers) : config.n_layers;
    config.merged = flag_of(c, "merged");
    config.has_sinks = flag_of(c, "has_sinks");  // older files have none
    constexpr int kMostExperts = 1 << 12;
    if (const std::optional<JsonField> n = c.find("n_experts"))
        config.n_experts = n->integer(0, kMostExperts);
    if (const std::optional<JsonField> n = c.find("n_experts_used"))
        config.n_experts_used = n->integer(0, config.n_experts);
    config.head_dim = c["head_dim"].integer(0, kLargest);
    config.d_model = c["d_model"].integer(0, kLargest);
    config.d_ff = c["d_ff"].integer(0, kWide);
    config.n_vocab = c["n_vocab"].integer(1, kWide);
    config.n_ctx = c["n_ctx"].integer(0, kWide);
    if (const std::optional<JsonField> window = c.find("window");
        window && window->size() > 0) {  // older files have none
        config.window = integers(*window, 0, kWide, kMostHeads);
        if (config.window.size() != to_index(config.n_layers))
            window->wanted(fmt::format("one for each of the {} layers", config.n_layers));
    }
    config.norm_eps = c["norm_eps"].real();
    config.rope_theta = c["rope_theta"].real();
    config.tied = c["tied"].flag();
    config.bos = c["bos"].integer(-1, kWide);
    config.eos = integers(c["eos"], -1, kWide, kMostTop);
}

AnswerEnd parse_answer_end(const JsonField& json) {
    AnswerEnd end;
    const JsonField stop = json["stop"];
    end.stop.clear();
    for (std::size_t i = 0, n = stop.size(kMostTop); i < n; ++i)
        end.stop.push_back(unhex(stop.at(i), kMostProse));
    end.max_tokens = json["max_tokens"].integer(1, kWide);
    return end;
}

std::shared_ptr<const RunInfo> parse_run(const JsonField& json) {
    // Ids of traces differ from those of sessions.
    static std::atomic<std::uint64_t> next{std::uint64_t{1} << 63};
    auto run = std::make_shared<RunInfo>();
    run->id = next++;
    run->model_path = json["model"]["path"].text(kMostName);
    run->model_hash = json["model"]["hash"].text(kMostName);
    parse_config(json["config"], run->config);
    parse_vocabulary(json, *run);
    run->layout = layout_of(run->config);
    run->backend = json["backend"].text(kMostName);
    run->prompt = unhex(json["prompt_bytes"], kMostProse);
    const int last_token = run->config.n_vocab - 1;
    run->prompt_tokens = integers(json["prompt_tokens"], 0, last_token, kLargest);
    if (run->prompt_tokens.empty()) json["prompt_tokens"].wanted("at least one token");
    run->seed = json["seed"].natural();
    run->n_generate = json["n_generate"].integer(0, kWide);
    if (const std::optional<JsonField> start = json.find("start")) {
        const JsonField lanes = (*start)["lanes"];
        for (std::size_t i = 0, n = lanes.size(); i < n; ++i)
            run->start.lanes.push_back(checked_spec(lanes.at(i)));
        run->start.sampling = (*start)["sampling"].text(kMostName);
        run->start.follow = (*start)["follow"].flag();
        run->start.ignore_eos = (*start)["ignore_eos"].flag();
        run->start.tokens_given = flag_of(*start, "tokens_given");  // older files have none of these
        if (const std::optional<JsonField> chat = start->find("chat"))
            run->start.chat = chat->text(kMostName);
        if (const std::optional<JsonField> parts = start->find("chat_parts"))
            run->start.chat_parts = {unhex(parts->at(0), kMostProse), unhex(parts->at(1), kMostProse),
                                     unhex(parts->at(2), kMostProse), unhex(parts->at(3), kMostProse)};
        if (const std::optional<JsonField> forced = start->find("forced"))
            run->start.forced = integers(*forced, 0, last_token, kLargest);
        if (const std::optional<JsonField> end = start->find("answer_end"))
            run->start.answer_end = parse_answer_end(*end);
        if (const std::optional<JsonField> right = start->find("right_answer"))
            run->start.right_answer = unhex(*right, kMostProse);
        if (const std::optional<JsonField> watch = start->find("watch"))
            run->start.watch = unhex(*watch, kMostProse);
        if (const std::optional<JsonField> looks = start->find("looks"))
            run->start.looks = integers(*looks, 0, kMostLook, kLargest);
    }
    return run;
}

Json lane_info_json(const LaneInfo& info) {
    // The policy is derived from the spec.
    Json out = {{"id", info.id}, {"spec", info.spec}, {"effective", info.effective}};
    if (!info.kv.empty())
        out["kv"] = {{"name", info.kv}, {"merged", info.merged}, {"token_bytes", info.token_bytes}};
    if (!info.kv.empty() && info.kv_dtype != KvType::automatic)
        out["kv"]["dtype"] = kv_type_name(info.kv_dtype);
    if (info.layout != nullptr) {
        int n_owners = 0;
        for (int l = 0; l < info.layout->n_layers(); ++l) n_owners += info.layout->owns(l) ? 1 : 0;
        out["kv"]["layers"] = n_owners;
        out["kv"]["heads"] = info.layout->n_kv_heads() / n_owners;
    }
    if (info.forked_from >= 0) {
        out["forked"] = {{"from", info.forked_from}, {"at", info.forked_at}};
        if (info.replayed) out["forked"]["relived"] = true;
    }
    return out;
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

std::vector<Branch> parse_branches(const JsonField& list) {
    std::vector<Branch> branches;
    for (std::size_t i = 0, n = list.size(); i < n; ++i) {
        const JsonField from = list.at(i), commands = from["commands"];
        Branch& branch = branches.emplace_back();
        branch.id = from["id"].integer(0, kInt);
        branch.parent = from["parent"].integer(-1, kInt);
        branch.from_row = from["from_row"].integer(0, kLargest);
        branch.last_row = from["last_row"].integer(branch.from_row, kLargest);
        for (std::size_t k = 0, n_commands = commands.size(); k < n_commands; ++k)
            branch.commands.push_back(
                {commands.at(k).at(0).integer(0, kLargest), commands.at(k).at(1).text(kMostSpec)});
    }
    return branches;
}

constexpr std::array kMeasures = {&RowMeasures::retained_mass, &RowMeasures::cosine_ideal,
                                  &RowMeasures::cosine_full,   &RowMeasures::output_similarity,
                                  &RowMeasures::sink_share,    &RowMeasures::learned_sink};
/// Of files that were written before there were learned sinks.
constexpr std::size_t kOldMeasures = 5;

/// Returns an empty array if nothing was measured.
Json measures_json(const RowMeasures& measures) {
    Json out = Json::array();
    bool any = false;
    const std::size_t n = std::isnan(measures.learned_sink) ? kOldMeasures : kMeasures.size();
    for (std::size_t i = 0; i < n; ++i) {
        out.push_back(number(measures.*kMeasures[i]));
        any = any || !std::isnan(measures.*kMeasures[i]);
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
    if (!lane.experts.empty()) {
        out["experts"] = Json::array();
        for (const std::uint16_t expert : lane.experts)
            out["experts"].push_back(expert == RowOutput::kNoExpert ? -1 : int{expert});
    }
    if (lane.shadow) out["shadow"] = true;
    if (lane.use.shadow_bytes > 0) out["shadow_bytes"] = lane.use.shadow_bytes;
    if (lane.ended) out["ended"] = true;
    if (!lane.failure.empty()) out["failure"] = lane.failure;
    return out;
}

/// -1 stands for a layer without experts.
std::vector<std::uint16_t> parse_experts(const JsonField& json, const ModelConfig& config) {
    std::vector<std::uint16_t> experts;
    for (std::size_t i = 0, n = json.size(to_index(config.n_layers * config.n_experts_used)); i < n; ++i)
        experts.push_back(
            static_cast<std::uint16_t>(json.at(i).integer(-1, std::max(config.n_experts, 1) - 1)));
    if (experts.size() != to_index(config.n_layers * config.n_experts_used)) experts.clear();
    return experts;
}

LaneRecord parse_record(const JsonField& json, const RunInfo& run,
                        const std::vector<std::shared_ptr<const LaneInfo>>& infos, RowParts& parts) {
    const int last_token = run.config.n_vocab - 1;
    LaneRecord lane;
    lane.info = infos[to_index(json["lane"].integer(0, static_cast<int>(infos.size()) - 1))];
    lane.token = json["token"].integer(0, last_token);
    lane.log_prob = json["log_prob"].real();
    lane.predicted = json["predicted"].integer(0, last_token);
    lane.entropy = json["entropy"].real();
    if (const JsonField kl = json["kl"]; !kl.is_null()) lane.kl = kl.at(0).real();
    if (const JsonField agrees = json["agrees"]; !agrees.is_null()) lane.agrees = agrees.flag();
    lane.tau = json["tau"].real();
    lane.use.stored_tokens = json["stored_tokens"].whole(0, kMostStored);
    lane.use.stored_bytes = json["stored_bytes"].whole(0, kMostBytes);
    lane.use.allocated_bytes = json["allocated_bytes"].whole(0, kMostBytes);
    lane.attended_tokens = json["attended_tokens"].whole(0, kMostStored);
    const JsonField top = json["top"];
    for (std::size_t i = 0, n = top.size(kMostTop); i < n; ++i)
        lane.top.push_back({top.at(i).at(0).integer(0, last_token), top.at(i).at(1).real()});
    if (const std::optional<JsonField> rows = json.find("rows")) {
        const int bits = rows->integer(0, 3);
        parts = {(bits & 1) != 0, (bits & 2) != 0, true};
    }
    if (const std::optional<JsonField> measures = json.find("measures"))
        for (std::size_t i = 0, n = measures->size(kMeasures.size()) > kOldMeasures ? kMeasures.size()
                                                                                    : kOldMeasures;
             i < n; ++i)
            lane.measures.*kMeasures[i] = measures->at(i).real();
    if (const std::optional<JsonField> experts = json.find("experts"))
        lane.experts = parse_experts(*experts, run.config);
    parts.shadow = flag_of(json, "shadow");
    if (const std::optional<JsonField> bytes = json.find("shadow_bytes"))
        lane.use.shadow_bytes = bytes->whole(0, kMostBytes);
    lane.ended = flag_of(json, "ended");
    if (const std::optional<JsonField> failure = json.find("failure"))
        lane.failure = failure->text(kMostToken);
    return lane;
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
            lanes.push_back(record_json(lane, to_index(it - infos.begin())));
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

TraceParser::TraceParser(std::string name, ReadBudget& budget) : name_(std::move(name)), budget_(budget) {}

std::shared_ptr<const KvLayout> TraceParser::layout_of_lane(const RunInfo& run, int n_kv_layers,
                                                            int n_kv_heads) {
    auto& layout = layouts_[{n_kv_layers, n_kv_heads}];
    if (layout == nullptr) {
        // Counts two tables of query heads, and lists of the heads that read each KV head.
        budget_.take(
            std::uint64_t{128} * static_cast<std::uint64_t>(run.config.n_layers * run.config.n_heads),
            "the KV heads of its lanes");
        layout = std::make_shared<const KvLayout>(
            KvLayout::shared(run.config.n_layers, run.config.n_heads, n_kv_layers, n_kv_heads));
    }
    return layout;
}

std::shared_ptr<const LaneInfo> TraceParser::parse_lane_info(const JsonField& json, const RunInfo& run) {
    budget_.take(2048, "the settings of its lanes");
    auto info = std::make_shared<LaneInfo>();
    info->id = json["id"].integer(0, kInt);
    info->spec = json["spec"].text(kMostSpec);
    info->effective = checked_spec(json["effective"]);
    if (const std::optional<JsonField> forked = json.find("forked");
        forked && forked->find("from")) {  // older files may have only "replayed"
        info->forked_from = (*forked)["from"].integer(0, kInt);
        info->forked_at = (*forked)["at"].integer(0, kLargest);
        info->replayed = flag_of(*forked, "relived");
    }
    if (const std::optional<JsonField> kv = json.find("kv")) {
        info->kv = (*kv)["name"].text(kMostName);
        info->merged = (*kv)["merged"].flag();
        if (const std::optional<JsonField> dtype = kv->find("dtype")) {
            const std::optional<KvType> type = kv_type_from_name(dtype->text(kMostName));
            if (!type) dtype->wanted("f32, f16, bf16 or q8");
            info->kv_dtype = *type;
        }
        info->token_bytes = (*kv)["token_bytes"].whole(0, kMostBytes);
        if (const std::optional<JsonField> layers = kv->find("layers")) {
            const JsonField heads = (*kv)["heads"];
            const int n_kv_layers = layers->integer(1, run.config.n_layers),
                      n_kv_heads = heads.integer(1, run.config.n_heads);
            if (run.config.n_heads % n_kv_heads != 0)
                heads.wanted(fmt::format("a divisor of the {} query heads", run.config.n_heads));
            info->layout = layout_of_lane(run, n_kv_layers, n_kv_heads);
        }
    }
    try {
        const PolicyParams policy = parse_stored_lane_spec(info->spec).policy;
        const KvLayout& layout = info->layout != nullptr ? *info->layout : run.layout;
        HeadGrid grid;
        if (policy.differs_by_head()) {
            // Every override is compared with every head.
            const auto n_units =
                static_cast<std::uint64_t>(layout.n_layers()) * static_cast<std::uint64_t>(layout.n_heads());
            const std::uint64_t n_changes = policy.overrides.size() + policy.heads.cells.size() +
                                            static_cast<std::uint64_t>(layout.n_layers()) + 1;
            budget_.look(256 * n_units * n_changes, "the settings of its lanes");
            budget_.take(sizeof(int) * n_units + sizeof(ResolvedPolicy) * std::min(n_units, n_changes),
                         "the settings of its lanes");
            grid = head_grid(layout);
        }
        info->policy = resolve(policy, run.n_prompt(), run.n_generate, grid);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::wrong_use) throw;
        json["spec"].bad(error.what());
    }
    return info;
}

ParsedTrace TraceParser::parse(std::string_view text, std::shared_ptr<const RunInfo> run) {
    // A value takes 16 bytes, a member of an object about 110 with its key.
    const std::uint64_t n_bytes = text.size() + std::uint64_t{112} * most_json_values(text);
    budget_.take(n_bytes, "its JSON text");
    if (n_bytes > kMostJson)
        fail(ErrorCode::bad_file, "cannot read {}: its JSON text would take {} MiB, and {} are the most",
             name_, n_bytes >> 20, kMostJson >> 20);
    const nlohmann::json root = parse_json(text, name_);
    const JsonField json(root, name_);
    if (const JsonField format = json["format"]; format.text(kMostName) != kFormat)
        format.wanted(fmt::format("\"{}\"", kFormat));
    if (const std::int64_t version = json["version"].whole(1, kInt); version > kVersion)
        json.bad(fmt::format("it has version {}, this Keyhole reads versions 1 to {}", version, kVersion));
    if (!run) run = parse_run(json["run"]);
    std::vector<std::shared_ptr<const LaneInfo>> infos;
    const JsonField settings = json["lane_settings"];
    for (std::size_t i = 0, n = settings.size(); i < n; ++i)
        infos.push_back(parse_lane_info(settings.at(i), *run));
    if (infos.empty()) settings.wanted("the settings of at least one lane");
    std::vector<std::shared_ptr<const std::vector<Branch>>> branches;
    if (const std::optional<JsonField> lists = json.find("other_branches"))
        for (std::size_t i = 0, n = lists->size(); i < n; ++i)
            branches.push_back(std::make_shared<const std::vector<Branch>>(parse_branches(lists->at(i))));
    ParsedTrace trace;
    const JsonField steps = json["steps"];
    for (std::size_t s = 0, n_steps = steps.size(); s < n_steps; ++s) {
        const JsonField from = steps.at(s), lanes = from["lanes"];
        auto step = std::make_shared<StepTrace>();
        step->run = run;
        step->row = from["row"].integer(run->n_prompt() - 1, kLargest);
        if (s > 0 && step->row != trace.steps.back()->row + 1)
            from["row"].wanted(
                fmt::format("{}, the row after that of the step before", trace.steps.back()->row + 1));
        step->step_ms = from["ms"].real();
        if (const std::optional<JsonField> branch = from.find("branch"))
            step->branch = branch->integer(0, kInt);
        if (const std::optional<JsonField> others = from.find("others"))
            step->other_branches =
                branches[to_index(others->integer(0, static_cast<int>(branches.size()) - 1))];
        step->commands = texts(from["commands"], kMostName);
        std::vector<RowParts> parts(lanes.size(to_index(kMostLanes)));
        if (parts.empty()) lanes.wanted("at least one lane");
        for (std::size_t i = 0; i < parts.size(); ++i)
            step->lanes.push_back(parse_record(lanes.at(i), *run, infos, parts[i]));
        trace.steps.push_back(std::move(step));
        trace.parts.push_back(std::move(parts));
    }
    return trace;
}

void check_run(const StepList& steps, std::string_view name, ReadBudget& budget) {
    if (steps.empty())
        fail(ErrorCode::bad_file, "cannot read {}: steps is empty, wanted at least one step", name);
    const RunInfo& run = *steps.front()->run;
    const auto bad = [&](const StepTrace& step, std::string_view why) {
        fail(ErrorCode::bad_file, "{} is damaged: at row {} {}", name, step.row, why);
    };
    if (steps.front()->row != run.n_prompt() - 1)
        bad(*steps.front(),
            fmt::format("the run begins; it should begin at row {}, the prompt's last", run.n_prompt() - 1));
    const auto n_positions = static_cast<std::uint64_t>(steps.back()->row) + 1;
    std::map<int, const KvLayout*> layouts;  // by lane id
    int row = steps.front()->row;
    for (const auto& step : steps) {
        if (step->row != row++) bad(*step, "a row is missing");
        std::set<int> here;
        for (const LaneRecord& lane : step->lanes) {
            const LaneInfo& info = *lane.info;
            const KvLayout* layout = info.layout != nullptr ? info.layout.get() : &run.layout;
            const bool is_copy =
                info.forked_from >= 0 && !info.replayed && layouts.contains(info.forked_from);
            const auto [known, is_new] =
                layouts.emplace(info.id, is_copy ? layouts.at(info.forked_from) : layout);
            if (is_new) {
                if (std::ssize(layouts) > kMostLanes)
                    bad(*step, fmt::format("there are more than {} lanes", kMostLanes));
                if (info.forked_from >= 0 && info.forked_at >= step->row)
                    bad(*step,
                        fmt::format("lane {} was forked at row {}, which is later", info.id, info.forked_at));
                // Tokens and evicted_at, in the reader's history and in its caller's.
                budget.take(2 * sizeof(std::int32_t) * n_positions *
                                (1 + static_cast<std::uint64_t>(layout->n_kv_heads())),
                            fmt::format("the table of lane {}, {} KV heads by {} positions,", info.id,
                                        layout->n_kv_heads(), n_positions));
            }
            if (known->second != layout)
                budget.look(static_cast<std::uint64_t>(layout->n_kv_heads()), "the KV heads of its lanes");
            if (!here.insert(info.id).second || !(known->second == layout || *known->second == *layout))
                bad(*step, fmt::format("lane {} appears twice or has other KV heads than before", info.id));
        }
    }
}

}  // namespace keyhole
