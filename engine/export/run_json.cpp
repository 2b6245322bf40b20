#include "engine/export/run_json.h"

#include "engine/analysis/measure_table.h"
#include "engine/analysis/run_metrics.h"
#include "engine/base/index.h"
#include "engine/base/json_file.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <numeric>

namespace keyhole {

namespace {

using Json = nlohmann::ordered_json;

Json number(float value) {
    // Uses its shortest text: 0.1f becomes 0.1, not 0.10000000149011612.
    if (!std::isfinite(value)) return nullptr;
    return ordered_json_of_text(fmt::format("{}", value));
}

/// of: the KV heads to list.
Json kv_heads_json(const KvLayout& layout, const std::vector<int>& of) {
    Json out = Json::array();
    for (const int g : of) {
        const KvHead& head = layout.kv_head(g);
        Json readers = Json::array();
        for (const HeadRef& reader : head.readers)
            readers.push_back({{"layer", reader.layer}, {"head", reader.head}});
        out.push_back(
            {{"owner_layer", head.owner_layer}, {"index", head.index}, {"readers", std::move(readers)}});
    }
    return out;
}

Json kv_heads_json(const KvLayout& layout) {
    std::vector<int> all(to_index(layout.n_kv_heads()));
    std::iota(all.begin(), all.end(), 0);
    return kv_heads_json(layout, all);
}

Json exported_kv_heads(const KvLayout& layout, const ExportRange& part) {
    return kv_heads_json(layout, kv_heads_read(layout, part.layers, part.heads));
}

std::string display(const RunInfo& run, int token) {
    const auto i = to_index(token);
    return token >= 0 && i < run.token_display.size() ? run.token_display[i] : fmt::format("<{}>", token);
}

Json step_json(const RunInfo& run, const StepTrace& step, const LaneRecord& lane) {
    Json out;
    out["row"] = step.row;
    out["token"] = lane.token;
    out["text"] = display(run, lane.token);
    out["predicted"] = lane.predicted;
    out["log_prob"] = number(lane.log_prob);
    out["entropy"] = number(lane.entropy);
    out["kl"] = lane.kl ? number(*lane.kl) : Json(nullptr);
    out["agrees"] = lane.agrees ? Json(*lane.agrees) : Json(nullptr);
    out["tau"] = number(lane.tau);
    out["stored_tokens"] = lane.use.stored_tokens;
    out["attended_tokens"] = lane.attended_tokens;
    out["stored_bytes"] = lane.use.stored_bytes;
    out["allocated_bytes"] = lane.use.allocated_bytes;
    if (lane.use.shadow_bytes > 0) out["shadow_bytes"] = lane.use.shadow_bytes;
    const RowMeasures& m = lane.measures;
    for (const auto& [name, value] : {std::pair("retained_mass", m.retained_mass),
                                      {"lost_mass", 1.0f - m.retained_mass},
                                      {"cosine_ideal", m.cosine_ideal},
                                      {"cosine_full", m.cosine_full},
                                      {"output_similarity", m.output_similarity},
                                      {"sink_share", m.sink_share},
                                      {"learned_sink", m.learned_sink}})
        if (!std::isnan(value)) out[name] = number(value);
    if (!lane.experts.empty()) {
        out["experts"] = Json::array();
        for (const std::uint16_t expert : lane.experts)
            out["experts"].push_back(expert == RowOutput::kNoExpert ? Json() : Json(expert));
    }
    out["ms"] = number(step.step_ms);
    return out;
}

Json numbers(std::span<const double> values) {
    Json out = Json::array();
    for (const double value : values) out.push_back(number(static_cast<float>(value)));
    return out;
}

/// Returns the metrics of a lane, without those that were not computed.
Json metrics_json(const LaneMetrics& m, int lane, int n_layers) {
    Json out;
    out["rows"] = m.n_rows;
    for (const LaneMean& mean : lane_means()) {
        const double value = mean.of(m);
        if (std::isnan(value)) continue;
        out[mean.name] = number(static_cast<float>(value));
        if (mean.name == "retained_mass") out["lost_mass"] = number(static_cast<float>(1 - value));
    }
    out["compared_rows"] = m.n_compared;
    out["first_divergence"] = m.first_divergence ? Json(*m.first_divergence) : Json(nullptr);
    out["shadow_rows"] = m.n_shadow_rows;
    Json layers = Json::object(), heads = Json::object(), classes = Json::object();
    for (const auto& [name, values] : {std::pair("retained_mass", &m.retained_by_head),
                                       {"cosine_ideal", &m.cosine_ideal_by_head},
                                       {"cosine_full", &m.cosine_full_by_head},
                                       {"output_similarity", &m.output_by_head}}) {
        if (values->empty()) continue;
        layers[name] = numbers(by_layer(*values, n_layers));
        const std::size_t n_heads = values->size() / to_index(n_layers);
        for (int l = 0; l < n_layers; ++l)
            heads[name].push_back(numbers(std::span(*values).subspan(to_index(l) * n_heads, n_heads)));
    }
    if (!std::isnan(m.recent_share)) layers["recent_share"] = numbers(m.recent_by_layer);
    out["by_layer"] = std::move(layers);
    out["by_head"] = std::move(heads);
    out["lifetime_by_position"] = numbers(m.lifetime_by_position);
    for (int c = 0; c < kTokenClasses; ++c) {
        const auto i = to_index(c);
        if (m.tokens_by_class[i] == 0) continue;
        classes[std::string(token_class_name(static_cast<TokenClass>(c)))] = {
            {"tokens", m.tokens_by_class[i]},
            {"lifetime", number(static_cast<float>(m.lifetime_by_class[i]))}};
    }
    out["lifetime_by_class"] = std::move(classes);
    Json words = Json::object();
    for (int c = 0; c < kWordClasses; ++c) {
        const auto i = to_index(c);
        if (m.tokens_by_word_class[i] == 0) continue;
        words[std::string(word_class_name(static_cast<WordClass>(c)))] = {
            {"penn_tags", penn_tags(static_cast<WordClass>(c))},
            {"tokens", m.tokens_by_word_class[i]},
            {"lifetime", number(static_cast<float>(m.lifetime_by_word_class[i]))}};
    }
    out["lifetime_by_word_class"] = std::move(words);
    Json overlaps = Json::array();
    for (std::size_t other = 0; other < m.jaccard.size(); ++other)
        if (static_cast<int>(other) != lane)
            overlaps.push_back({{"lane", other},
                                {"mean", number(static_cast<float>(mean_of(m.jaccard[other])))},
                                {"by_layer", numbers(m.jaccard[other])}});
    out["jaccard"] = std::move(overlaps);
    return out;
}

Json lane_json(const RunHistory& history, int lane, const LaneMetrics& metrics,
               const std::optional<ExportRange>& part) {
    const RunInfo& run = history.run();
    const RunHistory::Lane& info = history.lanes()[to_index(lane)];
    const LaneInfo& last = *history.lane_record(info.last_row, lane)->info;
    Json out;
    out["id"] = info.id;
    out["spec"] = last.effective;
    out["requested"] = last.spec;
    if (!last.kv.empty())
        out["kv"] = {
            {"sharing", last.kv}, {"uptrained", !last.merged}, {"bytes_per_token", last.token_bytes}};
    if (last.kv_dtype != KvType::automatic) out["kv"]["dtype"] = kv_type_name(last.kv_dtype);
    if (last.layout != nullptr) out["kv_heads"] = kv_heads_json(*last.layout);
    if (last.layout != nullptr && part) out["exported_kv_heads"] = exported_kv_heads(*last.layout, *part);
    if (info.forked_from >= 0) out["forked_from"] = {{"lane", info.forked_from}, {"row", info.forked_at}};
    const std::span<const int> tokens = std::span(info.tokens).subspan(to_index(history.n_prompt()));
    out["tokens"] = tokens;
    out["text"] = text_of_tokens(run, tokens);
    const std::string& failure = history.lane_record(info.last_row, lane)->failure;
    if (!failure.empty()) out["failure"] = failure;
    out["metrics"] = metrics_json(metrics, lane, run.layout.n_layers());
    out["steps"] = Json::array();
    for (int row = history.n_prompt(); row <= info.last_row; ++row) {
        const LaneRecord* record = row < info.first_row ? nullptr : history.lane_record(row, lane);
        out["steps"].push_back(record ? step_json(run, history.at_row(row), *record) : Json(nullptr));
    }
    return out;
}

Json command_json(const RunCommand& command) {
    return {{"row", command.row}, {"text", command.text}};
}

Json branch_json(const Branch& branch) {
    Json out;
    out["id"] = branch.id;
    out["parent"] = branch.parent;
    out["from_row"] = branch.from_row;
    out["last_row"] = branch.last_row;
    out["commands"] = Json::array();
    for (const RunCommand& command : branch.commands) out["commands"].push_back(command_json(command));
    return out;
}

std::string dump(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Formats one key per line and one step per line: long, but readable for people and diffs.
std::string layout_json(const Json& run) {
    const auto object = [](const Json& json, const std::string& indent, const auto& value) {
        std::string out = "{";
        for (const auto& [key, part] : json.items())
            out += fmt::format("{}\n{}\"{}\": {}", out.size() > 1 ? "," : "", indent, key, value(key, part));
        return out + "\n" + indent.substr(2) + "}";
    };
    const auto list = [](const Json& json, const std::string& indent, const auto& value) {
        std::string out = "[";
        for (const Json& part : json)
            out += fmt::format("{}\n{}{}", out.size() > 1 ? "," : "", indent, value(part));
        return out + (json.empty() ? "]" : "\n" + indent.substr(2) + "]");
    };
    const auto lane = [&](const Json& json) {
        return object(json, "      ", [&](const std::string& key, const Json& part) {
            return key == "steps" ? list(part, "        ", dump) : dump(part);
        });
    };
    return object(run, "  ",
                  [&](const std::string& key, const Json& part) {
                      if (key == "files") return list(part, "    ", dump);
                      return key == "lanes" ? list(part, "    ", lane) : dump(part);
                  }) +
           "\n";
}

}  // namespace

std::vector<RunCommand> commands_of(const RunHistory& history) {
    std::vector<RunCommand> commands;
    for (const auto& step : history.steps())
        for (const std::string& text : step->commands) commands.push_back({step->row - 1, text});
    return commands;
}

std::string text_of_tokens(const RunInfo& run, std::span<const int> tokens) {
    std::string bytes;
    for (int token : tokens)
        if (token >= 0 && to_index(token) < run.token_bytes.size()) bytes += run.token_bytes[to_index(token)];
    return bytes;
}

std::string make_run_json(const RunHistory& history, int first_row, const ExportAbout& about) {
    const RunInfo& run = history.run();
    Json out;
    out["version"] = 1;
    if (!about.program.empty()) out["program"] = about.program;
    if (!about.command.empty()) out["command"] = about.command;
    out["model"] = {{"path", run.model_path}, {"hash", run.model_hash}};
    out["files"] = about.files;
    if (about.part) {
        out["layers"] = about.part->layers;
        out["heads"] = about.part->heads;
        out["exported_kv_heads"] = exported_kv_heads(run.layout, *about.part);
    }
    if (!about.whole) return layout_json(out);
    out["prompt"] = run.prompt;
    out["prompt_tokens"] = run.prompt_tokens;
    out["first_row"] = first_row;
    out["start"] = {{"lanes", run.start.lanes},     {"sampling", run.start.sampling},
                    {"follow", run.start.follow},   {"ignore_eos", run.start.ignore_eos},
                    {"n_generate", run.n_generate}, {"tokens_given", run.start.tokens_given},
                    {"forced", run.start.forced}};
    if (!run.start.chat.empty()) out["start"]["chat"] = run.start.chat;
    out["seed"] = run.seed;
    out["backend"] = run.backend;
    out["commands"] = Json::array();
    for (const RunCommand& command : commands_of(history)) out["commands"].push_back(command_json(command));
    const StepTrace& last = *history.steps().back();
    out["branch"] = last.branch;
    out["branches"] = Json::array();
    if (last.other_branches)
        for (const Branch& branch : *last.other_branches) out["branches"].push_back(branch_json(branch));
    out["kv_heads"] = kv_heads_json(run.layout);
    for (const Measure& m : measures()) out["metrics"][std::string(m.name)] = m.equation;
    const std::vector<LaneMetrics> metrics = run_metrics(history);
    out["lanes"] = Json::array();
    for (int lane = 0; lane < static_cast<int>(history.lanes().size()); ++lane)
        out["lanes"].push_back(lane_json(history, lane, metrics[to_index(lane)], about.part));
    // Indent, but keep each step on one line.
    return layout_json(out);
}

}  // namespace keyhole
