#include "app/view/page.h"

#include "app/view/metric_rows.h"
#include "app/view/page_numbers.h"
#include "app/view/page_source.h"
#include "app/view/run_facts.h"
#include "engine/analysis/measure_curves.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "engine/base/json_file.h"
#include "engine/base/model_name.h"
#include "engine/base/utf8.h"
#include "engine/export/options.h"
#include "engine/figure/lane_look.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

namespace keyhole {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kScripts[] = {"data.js", "colors.js", "place.js", "story.js", "text.js",
                                         "why.js",  "atlas.js",  "head.js",  "rest.js",  "main.js"};

/// Returns JSON that is safe within a script element, in ASCII.
std::string script_json(const Json& json) {
    std::string out;
    for (const char c : json.dump(-1, ' ', true, Json::error_handler_t::replace))
        if (c == '<' || c == '>' || c == '&')
            out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        else
            out += c;
    return out;
}

Json number_or_null(float value) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
}

/// The texts of tokens, each once.
class Strings {
  public:
    explicit Strings(const RunInfo& run) : run_(run) {}
    int of(int token) {
        if (token < 0) return -1;
        const auto [at, is_new] = index_.try_emplace(token, static_cast<int>(texts_.size()));
        if (is_new)
            texts_.push_back(to_index(token) < run_.token_display.size()
                                 ? page_text(run_.token_display[to_index(token)])
                                 : fmt::format("<{}>", token));
        return at->second;
    }
    const std::vector<std::string>& texts() const { return texts_; }

  private:
    const RunInfo& run_;
    std::unordered_map<int, int> index_;
    std::vector<std::string> texts_;
};

Json answer_json(const AnswerLine& line) {
    Json parts = Json::array();
    for (const AnswerWord& word : line.words) parts.push_back({page_text(word.text), word.differs});
    const char* mark = line.mark == AnswerLine::Mark::right   ? "right"
                       : line.mark == AnswerLine::Mark::wrong ? "wrong"
                                                              : "";
    return {{"mark", mark}, {"note", page_text(line.note)}, {"parts", parts}};
}

/// Returns what each lane answers, as the picture `answers` has it; null where nothing is known.
Json answers_json(const RunFacts& facts) {
    std::vector<std::string> specs;
    for (const LaneRecord& record : facts.history.steps().back()->lanes)
        specs.push_back(record.info->effective);
    Json out = Json::array();
    for (std::size_t i = 0; i < facts.lanes.size(); ++i) out.push_back(nullptr);
    const AnswersFigure figure =
        answers_figure(facts.history.run(), facts.answers, specs, facts.source.right_answer);
    for (std::size_t i = 0; i < figure.lines.size(); ++i)
        if (facts.answers[i].lane != facts.other_settings) out[i] = answer_json(figure.lines[i]);
    return out;
}

/// Returns the scalars of a lane's steps, a list each; null where the lane has no record.
Json steps_json(const RunFacts& facts, int lane) {
    Json out = Json::object();
    const auto add = [&](const char* name, auto value) {
        Json list = Json::array();
        bool any = false;
        for (const auto& step : facts.history.steps()) {
            const LaneRecord* record =
                facts.history.lane_record(step->row, lane_of_row(facts.history, lane, step->row));
            list.push_back(record == nullptr ? Json(nullptr) : value(*record));
            any = any || !list.back().is_null();
        }
        if (any) out[name] = std::move(list);
    };
    add("log_prob", [](const LaneRecord& r) { return number_or_null(r.log_prob); });
    add("entropy", [](const LaneRecord& r) { return number_or_null(r.entropy); });
    add("kl", [](const LaneRecord& r) { return r.kl ? number_or_null(*r.kl) : Json(nullptr); });
    add("stored_tokens", [](const LaneRecord& r) { return Json(r.use.stored_tokens); });
    add("stored_bytes", [](const LaneRecord& r) { return Json(r.use.stored_bytes); });
    return out;
}

/// Returns the likeliest next tokens of each step: [text, log-probability].
Json top_json(const RunFacts& facts, int lane, Strings& strings) {
    constexpr std::size_t kMost = 5;
    Json out = Json::array();
    for (const auto& step : facts.history.steps()) {
        const LaneRecord* record =
            facts.history.lane_record(step->row, lane_of_row(facts.history, lane, step->row));
        Json list = Json::array();
        for (std::size_t k = 0; record != nullptr && k < std::min(record->top.size(), kMost); ++k)
            list.push_back({strings.of(record->top[k].id), number_or_null(record->top[k].log_prob)});
        out.push_back(std::move(list));
    }
    return out;
}

Json lane_json_of(const RunFacts& facts, std::size_t i, Strings& strings) {
    const RunHistory& history = facts.history;
    const int lane = facts.known[i];
    const RunHistory::Lane& of = history.lanes()[to_index(lane)];
    const LaneRecord& last = *history.lane_record(of.last_row, lane);
    const KvLayout& layout = history.layout(lane);
    const StoryLane& story = facts.story.lanes[i];
    Json out;
    out["name"] = page_text(facts.lanes[i].name);
    out["title"] = out["name"];
    out["look"] = of.look;
    out["keeps"] = story.keeps;
    out["spec"] = page_text(last.info->effective);
    out["settings"] = Json::array();
    for (const SettingsFrom& one : settings_of(history, lane))
        out["settings"].push_back({one.row, page_text(one.name), page_text(one.effective)});
    std::string paper = page_text(story.name);
    for (std::size_t k = 1; k < out["settings"].size(); ++k)
        paper += ", then " + out["settings"][k][1].get<std::string>();
    out["paper"] = paper;
    out["evicts"] = last.info->policy.evicts();
    out["failure"] = page_text(last.failure);
    out["first_row"] = of.first_row;
    out["last_row"] = of.last_row;
    out["tokens"] = Json::array();
    for (int p = 0; p <= std::min(history.last_row(), static_cast<int>(of.tokens.size()) - 1); ++p)
        out["tokens"].push_back(strings.of(of.tokens[to_index(p)]));
    out["rows"] = Json::array();
    for (int row = 0; row < facts.story.n_rows; ++row)
        out["rows"].push_back(strings.of(own_choice(history, lane, facts.story.first_row + row + 1)));
    out["kv_of"] = Json::array();
    for (int layer = 0; layer < layout.n_layers(); ++layer)
        for (int head = 0; head < layout.n_heads(); ++head)
            out["kv_of"].push_back(layout.kv_head_from_head(layer, head));
    out["kv"] = Json::array();
    for (int g = 0; g < layout.n_kv_heads(); ++g)
        out["kv"].push_back({layout.kv_head(g).owner_layer, layout.kv_head(g).index});
    out["steps"] = steps_json(facts, lane);
    out["top"] = top_json(facts, lane, strings);
    return out;
}

Json color_json(Rgb8 color) {
    return {color.r, color.g, color.b};
}
std::string hex(Rgb8 color) {
    return fmt::format("#{:02x}{:02x}{:02x}", color.r, color.g, color.b);
}

Json colors_json() {
    Json out;
    for (const Colormap map : {Colormap::viridis, Colormap::rdbu, Colormap::rdbu_dark}) {
        std::string text;
        for (const Rgb8 color : colormap_table(map)) text += hex(color).substr(1);
        out["maps"][std::string(colormap_name(map))] = text;
    }
    for (const auto& [name, background] :
         {std::pair("light", Background::light), std::pair("dark", Background::dark)}) {
        const CellColors cells = cell_colors(background);
        out["cells"][name] = {
            {"future", color_json(cells.future)},   {"missing", color_json(cells.missing)},
            {"evicted", color_json(cells.evicted)}, {"hatch", color_json(cells.hatch)},
            {"kept", color_json(cells.kept)},       {"last_seen", color_json(cells.last_seen)},
            {"hidden", color_json(cells.hidden)}};
    }
    for (int lane = 0; lane < static_cast<int>(lane_looks::kColors); ++lane) {
        const std::span<const float> dash = lane_look(lane, Background::light).dash;
        out["lanes"].push_back(
            {hex(lane_look(lane, Background::light).color), hex(lane_look(lane, Background::dark).color)});
        out["dashes"].push_back(std::vector<float>(dash.begin(), dash.end()));
    }
    return out;
}

Json measures_json() {
    Json out = Json::object();
    for (const char* name : {"kl", "entropy"}) {
        const Measure& about = measure(name);
        out[name] = {{"label", fmt::format("{}, {}", about.label, about.unit)},
                     {"help", about.help},
                     {"equation", about.equation},
                     {"logarithmic", about.logarithmic},
                     {"compares", std::string_view(name) == "kl"}};
    }
    return out;
}

Json means_json(const RunFacts& facts) {
    Json out = Json::array();
    for (const MetricRow& row : metric_rows(run_metrics(facts.history))) {
        Json values = Json::array();
        for (const int lane : facts.known) values.push_back(row.cells[to_index(lane)]);
        out.push_back({{"label", row.label}, {"values", std::move(values)}});
    }
    return out;
}

Json branches_json(const RunHistory& history) {
    Json out = Json::array();
    const auto& others = history.steps().back()->other_branches;
    for (const Branch& branch : others ? *others : std::vector<Branch>()) {
        Json commands = Json::array();
        for (const RunCommand& command : branch.commands)
            commands.push_back({{"row", command.row}, {"text", page_text(command.text)}});
        out.push_back({{"id", branch.id},
                       {"from_row", branch.from_row},
                       {"last_row", branch.last_row},
                       {"commands", std::move(commands)}});
    }
    return out;
}

Json commands_json(const RunHistory& history) {
    Json out = Json::array();
    for (const auto& step : history.steps())
        for (const std::string& text : step->commands)
            out.push_back({{"row", step->row - 1}, {"text", page_text(text)}});
    return out;
}

/// Returns everything but the numbers and what depends on how many of them there are.
Json run_json_of(const RunFacts& facts) {
    const RunHistory& history = facts.history;
    const RunInfo& run = history.run();
    Strings strings(run);
    Json out;
    out["about"] = {{"program", facts.source.program},
                    {"command", page_text(facts.source.command)},
                    {"model", page_text(model_name(run.model_path))},
                    {"model_hash", run.model_hash},
                    {"seed", run.seed},
                    {"follow", run.start.follow}};
    out["n_prompt"] = history.n_prompt();
    out["first_row"] = history.steps().front()->row;
    out["last_row"] = history.last_row();
    out["n_layers"] = run.config.n_layers;
    out["n_heads"] = run.config.n_heads;
    out["has_sinks"] = run.config.has_sinks;
    out["explained"] = facts.story.explained;
    out["right"] = page_text(facts.source.right_answer);
    out["words"] = nullptr;
    if (facts.words)
        out["words"] = {
            {"first", facts.words->first}, {"last", facts.words->last}, {"text", facts.story.words}};
    out["story"] = {{"first_row", facts.story.first_row}, {"n_rows", facts.story.n_rows}};
    const int lane = facts.story.explained >= 0 ? facts.story.explained : facts.source.focus.index;
    out["focus"] = {{"lane", lane}, {"layer", facts.focus.layer}, {"head", facts.focus.head}};
    out["lanes"] = Json::array();
    const Json answers = answers_json(facts);
    for (std::size_t i = 0; i < facts.lanes.size(); ++i) {
        out["lanes"].push_back(lane_json_of(facts, i, strings));
        out["lanes"].back()["answer"] = answers[i];
    }
    out["strings"] = strings.texts();
    out["measures"] = measures_json();
    out["means"] = means_json(facts);
    out["branches"] = branches_json(history);
    out["commands"] = commands_json(history);
    out["colors"] = colors_json();
    return out;
}

/// Adds what the prompt's attention and each head's largest value say: blocks of prompts, and scales.
void add_prompts(Json& run, PageNumbers& numbers, const RunFacts& facts, const PageRows& rows) {
    const int n_all = static_cast<int>(facts.telling.size());
    std::map<const PromptRows*, int> images;
    run["prompt_images"] = Json::array();
    for (std::size_t i = 0; i < facts.known.size(); ++i) {
        Json& lane = run["lanes"][i];
        const PromptRows* image = prompt_image_of(facts.history, facts.known[i]);
        lane["prompt"] = -1;
        std::vector<float> largest = rows.largest[i];
        if (image != nullptr) {
            const auto [at, is_new] = images.try_emplace(image, static_cast<int>(images.size()));
            lane["prompt"] = at->second;
            if (is_new) {
                const PromptBlocks made =
                    add_prompt(numbers, fmt::format("prompt{}", at->second), *image, n_all);
                run["prompt_images"].push_back({{"blocks", made.blocks}, {"side", made.side}});
            }
            const std::vector<float> of_prompt = largest_of_prompt(*image, n_all);
            for (std::size_t head = 0; head < largest.size(); ++head)
                largest[head] = std::max(largest[head], of_prompt[head]);
        }
        lane["scale"] = Json::array();
        for (const float most : largest) {
            const ColorScale scale = attention_scale(most);
            lane["scale"].push_back({scale.low, scale.high});
        }
    }
}

/// Returns how many rows of heads fit into so many bytes, about.
std::size_t n_rows_within(const PageRows& rows, double bytes) {
    std::size_t n = 0;
    while (n < rows.order.size() && (bytes -= double(rows.most_bytes[n])) >= 0) ++n;
    return n;
}

/// Returns what the page lacks, in sentences.
Json notes_of(const RunFacts& facts, const PageRows& rows, std::size_t n, const Json& run) {
    Json notes = Json::array();
    const int n_all = static_cast<int>(facts.telling.size());
    if (n == rows.order.size()) {
        notes.push_back(fmt::format("Attention and scores of all {} steps and all {} heads are in it.",
                                    facts.history.steps().size(), n_all));
    } else {
        notes.push_back(fmt::format(
            "A page of this run has at most {}. So it has the attention and scores of {} of {} rows of a "
            "head: first those of the answers, and of the heads that read the words most. Evictions, texts "
            "and measures are complete.",
            format_bytes(static_cast<std::int64_t>(most_page_bytes(facts.history.n_positions()))), n,
            rows.order.size()));
    }
    notes.push_back(
        "Attention has the half precision of a trace. Numbers have the digits that are shown: 4, or 2 below "
        "0.001.");
    if (!run["prompt_images"].empty()) {
        const int side = run["prompt_images"][0]["side"].get<int>();
        notes.push_back(fmt::format(
            "The prompt's attention is a picture: 256 levels, each the highest of {0} x {0} cells.", side));
    }
    for (std::size_t i = 0; i < facts.known.size(); ++i) {
        const std::string note = recording_note(facts.history, facts.known[i], facts.source.options.stride,
                                                facts.source.options.dense_from);
        if (!note.empty()) notes.push_back(fmt::format("Lane {}: {}.", i, note));
    }
    return notes;
}

std::string plain_answers(const RunFacts& facts) {
    std::string out = "<p>This page needs JavaScript. The lanes answered:</p><ul>";
    for (const StoryLane& lane : facts.story.lanes)
        out += fmt::format("<li>{} {}, keeps {}: {}</li>", lane.lane, escape_xml(page_text(lane.name)),
                           lane.keeps, escape_xml(page_text(lane.shown.answer.text)));
    return out + "</ul>";
}

std::string page_of(const RunFacts& facts, const std::string& run, const std::string& numbers) {
    std::string script = "\"use strict\";\n";
    for (const std::string_view name : kScripts) script += page_source(name);
    const std::string model = escape_xml(page_text(model_name(facts.history.run().model_path)));
    const std::map<std::string_view, std::string> values = {
        {"program", escape_xml(facts.source.program)},
        {"title", fmt::format("{} – Keyhole", escape_xml(facts.story.question))},
        {"style", std::string(page_source("page.css"))},
        {"model", model},
        {"question", escape_xml(facts.story.question)},
        {"sentence", escape_xml(facts.story.sentence)},
        {"answers", plain_answers(facts)},
        {"run", run},
        {"numbers", numbers},
        {"script", script}};
    return filled(page_source("page.html"), [&](std::string_view name) { return values.at(name); });
}

}  // namespace

std::size_t most_page_bytes(int n_positions) {
    constexpr double kFew = 400, kMany = 4'096, kLeast = 1e6, kMost = 5e6;
    const double part = std::clamp((n_positions - kFew) / (kMany - kFew), 0.0, 1.0);
    return static_cast<std::size_t>(kLeast + part * (kMost - kLeast));
}

std::string page_text(std::string_view text) {
    const auto turns = [](char32_t c) {
        return c == 0x061c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
               (c >= 0x2066 && c <= 0x2069);
    };
    std::string out;
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
        const char32_t c = length > 0 ? utf8_decode(character) : U'\0';
        if (length == 0)
            out += fmt::format("<0x{:02X}>", static_cast<unsigned char>(character.front()));
        else if (turns(c) || (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0))
            out += fmt::format("<U+{:04X}>", static_cast<unsigned>(c));
        else
            out += character;
        text.remove_prefix(character.size());
    }
    return out;
}

std::string run_page(const PictureSource& source) {
    const RunFacts facts = run_facts(source);
    const PageRows rows = page_rows(facts.history, facts.known, facts.telling, facts.story.first_row,
                                    facts.story.first_row + facts.story.n_rows - 1);
    PageNumbers base;
    Json run = run_json_of(facts);
    add_evictions(base, facts.history, facts.known);
    add_prompts(run, base, facts, rows);
    const auto most = double(most_page_bytes(facts.history.n_positions()));
    // What rows cost is known only once they are compressed: a few attempts come near to what fits.
    double room = most - double(page_of(facts, script_json(run), base.text()).size());
    std::string best;
    std::size_t n_best = 0;
    constexpr int kAttempts = 5;
    for (int attempt = 0; attempt < kAttempts || best.empty(); ++attempt) {
        const std::size_t n = attempt < 2 * kAttempts ? n_rows_within(rows, room * 3 / 4) : 0;
        if (!best.empty() && n <= n_best) break;
        PageNumbers numbers = base;
        add_rows(numbers, facts.history, rows, n);
        run["notes"] = notes_of(facts, rows, n, run);
        run["sections"] = json_of_text(numbers.directory());
        std::string page = page_of(facts, script_json(run), numbers.text());
        const double size = double(page.size());
        if (size <= most || n == 0) {
            best = std::move(page);
            n_best = n;
            if (n == 0 || n == rows.order.size() || size > 0.95 * most) break;
        }
        room = std::max(room, 0.0) * 0.98 * most / size;
    }
    return best;
}

}  // namespace keyhole
