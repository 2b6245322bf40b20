#include "app/lessons/lesson_file.h"

#include "app/base/assets.h"
#include "app/lessons/lesson_claims.h"
#include "app/models/find_model.h"
#include "app/view/atlas_colors.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_field.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace keyhole {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kMostLessonBytes = 4 << 20, kMostValues = 200'000, kMostLessonText = 1 << 20,
                      kMostWord = 4096, kMostItems = 1000;
constexpr int kMostPlacesInFile = 1 << 20;

/// An object with its members, so that an unknown one can be named.
class Object {
  public:
    Object(const nlohmann::json& value, JsonField field, std::initializer_list<std::string_view> known)
        : value_(value), field_(std::move(field)) {
        if (!value.is_object()) field_.wanted("an object");
        for (const auto& [name, member] : value.items())
            if (std::find(known.begin(), known.end(), name) == known.end())
                field_.bad(
                    fmt::format("'{}' is not known; known are {}", shown_text(name), fmt::join(known, ", ")));
    }
    bool has(const char* name) const { return value_.contains(name); }
    JsonField field(const char* name) const { return field_[name]; }
    const nlohmann::json& json(const char* name) const { return value_.at(name); }
    const JsonField& self() const { return field_; }

    std::string text(const char* name, std::size_t most = kMostWord) const {
        return has(name) ? field_[name].text(most) : std::string();
    }
    int whole(const char* name, int other, int low, int high) const {
        return has(name) ? field_[name].integer(low, high) : other;
    }
    bool flag(const char* name, bool other) const { return has(name) ? field_[name].flag() : other; }
    std::vector<std::string> texts(const char* name) const {
        std::vector<std::string> all;
        if (!has(name)) return all;
        const JsonField list = field_[name];
        for (std::size_t i = 0, n = list.size(kMostItems); i < n; ++i)
            all.push_back(list.at(i).text(kMostLessonText));
        return all;
    }

  private:
    const nlohmann::json& value_;
    JsonField field_;
};

/// Runs what throws Error(wrong_use), and names the member in its message.
template <class Work>
auto named(const JsonField& field, Work work) {
    try {
        return work();
    } catch (const Error& error) {
        if (error.code() != ErrorCode::wrong_use) throw;
        field.bad(error.what());
    }
}

/// Words of a step are read from a projector, so they are few.
std::string few_words(const Object& in, const char* name) {
    std::string text = in.text(name);
    if (const int n = count_words(text); n > Lesson::kMostWords)
        in.field(name).bad(fmt::format("it has {} words; a step has at most {}", n, Lesson::kMostWords));
    return text;
}

LessonText read_text(const nlohmann::json& value, const JsonField& field) {
    LessonText text;
    if (value.is_string()) {
        text.text = field.text(kMostLessonText);
        return text;
    }
    const Object in(value, field, {"file", "from", "bytes"});
    text.file = in.text("file");
    const std::filesystem::path path(text.file);
    if (text.file.empty() || path.is_absolute() ||
        std::find(path.begin(), path.end(), std::filesystem::path("..")) != path.end())
        field.bad("a file is named below assets/, such as \"prompts/story.txt\"");
    text.from = in.whole("from", 0, 0, 1 << 30);
    text.bytes = in.whole("bytes", 0, 0, 1 << 30);
    return text;
}

/// Returns a run with the model, lanes and follow of another: what belongs to the prompt starts over.
LessonRun with_prompt_of(const LessonRun& from, const LessonText& prompt) {
    LessonRun run;
    run.model = from.model;
    run.lanes = from.lanes;
    run.follow = from.follow;
    run.prompt = prompt;
    return run;
}

LessonRun read_run(const nlohmann::json& value, const JsonField& field, LessonRun run) {
    const Object in(value, field,
                    {"model", "prompt", "then", "lanes", "follow", "chat", "answer", "watch", "stop"});
    if (in.has("model")) run.model = in.text("model");
    // A lesson may come from a stranger, who must not choose which files are opened here.
    if (!is_catalog_name(run.model))
        in.field("model").bad(
            "a lesson names its model by the catalogue (keyhole get --list), never by a path; to read it "
            "with another model, give --model");
    if (in.has("prompt")) {
        run = with_prompt_of(run, {});
        run.prompt = read_text(in.json("prompt"), in.field("prompt"));
    }
    if (run.prompt.empty()) in.self().bad("it has no prompt");
    if (in.has("then")) run.then = read_text(in.json("then"), in.field("then"));
    if (in.has("lanes")) {
        run.lanes = in.texts("lanes");
        if (run.lanes.empty()) in.field("lanes").wanted("at least one lane");
        for (std::size_t i = 0; i < run.lanes.size(); ++i)
            named(in.field("lanes").at(i), [&] { return parse_stored_lane_spec(run.lanes[i]); });
    }
    run.follow = in.flag("follow", run.follow);
    run.chat = in.flag("chat", run.chat);
    if (in.has("answer")) run.answer = in.text("answer");
    if (in.has("watch")) run.watch = in.text("watch");
    if (in.has("stop")) run.stop = in.texts("stop");
    if (std::find(run.stop.begin(), run.stop.end(), "") != run.stop.end())
        in.field("stop").bad("it holds an empty text, which would end every answer");
    return run;
}

std::vector<LessonCommand> read_commands(const Object& in, const char* name) {
    std::vector<LessonCommand> commands;
    const std::vector<std::string> texts = in.texts(name);
    for (std::size_t i = 0; i < texts.size(); ++i)
        commands.push_back(named(in.field(name).at(i), [&] { return parse_lesson_command(texts[i]); }));
    return commands;
}

TokenSpan read_span(const JsonField& field) {
    if (field.size(2) != 2) field.wanted("[FIRST, LAST]");
    TokenSpan span{field.at(0).integer(0, kMostPlacesInFile), field.at(1).integer(0, kMostPlacesInFile)};
    if (span.last < span.first) field.wanted("[FIRST, LAST], the first not after the last");
    return span;
}

TokenSet read_tokens(const Object& in) {
    TokenSet tokens;
    tokens.words = in.text("words");
    if (in.has("range")) tokens.range = read_span(in.field("range"));
    if (in.has("part")) {
        const std::string part = in.text("part");
        if (part == "prompt")
            tokens.part = TokenSet::Part::prompt;
        else if (part == "generated")
            tokens.part = TokenSet::Part::generated;
        else
            in.field("part").wanted("\"prompt\" or \"generated\"");
    }
    if (!tokens.words.empty() + tokens.range.has_value() + (tokens.part != TokenSet::Part::all) > 1)
        in.self().bad("give one of words, range and part");
    return tokens;
}

constexpr std::array<std::pair<const char*, Claim::Is>, 7> kComparisons = {{{"is", Claim::Is::equal},
                                                                            {"above", Claim::Is::above},
                                                                            {"below", Claim::Is::below},
                                                                            {"at_least", Claim::Is::at_least},
                                                                            {"at_most", Claim::Is::at_most},
                                                                            {"contains", Claim::Is::contains},
                                                                            {"lacks", Claim::Is::lacks}}};

Claim read_claim(const nlohmann::json& value, const JsonField& field) {
    const Object in(
        value, field,
        {"measure", "lane", "other", "words", "range", "part", "layer", "head", "steps", "more_than", "over",
         "is", "above", "below", "at_least", "at_most", "contains", "lacks"});
    Claim claim;
    claim.measure = in.text("measure");
    const ClaimMeasure* measure = find_claim_measure(claim.measure);
    if (measure == nullptr)
        in.field("measure").wanted(fmt::format("one of {}", fmt::join(claim_measure_names(), ", ")));
    claim.lane = in.whole("lane", 0, 0, kMostPlacesInFile);
    claim.other = in.whole("other", 0, 0, kMostPlacesInFile);
    claim.tokens = read_tokens(in);
    claim.layer = in.whole("layer", -1, 0, kMostPlacesInFile);
    claim.head = in.whole("head", -1, 0, kMostPlacesInFile);
    if (in.has("steps")) {
        const TokenSpan span = read_span(in.field("steps"));
        claim.steps = {span.first, span.last};
    }
    if (in.has("more_than")) claim.more_than = in.field("more_than").number(0, 1);
    if (in.has("over")) claim.over = in.field("over").integer(0, kMostPlacesInFile);
    int n = 0;
    for (const auto& [name, is] : kComparisons) {
        if (!in.has(name)) continue;
        ++n;
        claim.is = is;
        const bool words = is == Claim::Is::contains || is == Claim::Is::lacks;
        if (words != measure->is_text)
            in.field(name).bad(words ? "this measure is a number"
                                     : "this measure is a text: contains, lacks");
        if (words)
            claim.text = in.text(name);
        else
            claim.value = in.field(name).number(-1e12, 1e12);
    }
    if (n != 1) field.bad("give one of is, above, below, at_least, at_most, contains, lacks");
    return claim;
}

/// Reads the pane that `at` names; Pane::none without `at`.
Pane read_pane(const Object& in) {
    const std::string name = in.text("at");
    if (name.empty()) return Pane::none;
    if (const PaneRow* row = find_pane(name)) return row->pane;
    std::vector<std::string_view> names;
    for (const PaneRow& row : kPanes) names.push_back(row.name);
    in.field("at").wanted(fmt::format("one of {}", fmt::join(names, ", ")));
}

/// Reads "L4.H1".
HeadPlace read_head(const std::string& text, const JsonField& field) {
    HeadPlace place{-1, -1};
    int end = 0;
    if (std::sscanf(text.c_str(), "L%d.H%d%n", &place.layer, &place.head, &end) != 2 ||
        to_index(end) != text.size() || place.layer < 0 || place.head < 0 ||
        std::max(place.layer, place.head) > kMostPlacesInFile)
        field.wanted("heads such as \"L4.H1\"");
    return place;
}

Look read_look(const nlohmann::json& value, const JsonField& field) {
    const Object in(value, field,
                    {"at", "words", "range", "part", "lane", "layer", "head", "mode", "arrangement", "curve",
                     "other", "color", "heads", "zoom"});
    Look look;
    look.pane = read_pane(in);
    look.tokens = read_tokens(in);
    for (const auto& [name, to] : {std::pair("lane", &look.lane),
                                   {"layer", &look.layer},
                                   {"head", &look.head},
                                   {"other", &look.other}})
        if (in.has(name)) *to = in.field(name).integer(0, kMostPlacesInFile);
    const auto one_of = [&](const char* name, std::initializer_list<std::string_view> known) {
        std::string text = in.text(name);
        if (!text.empty() && std::find(known.begin(), known.end(), text) == known.end())
            in.field(name).wanted(fmt::format("one of {}", fmt::join(known, ", ")));
        return text;
    };
    look.mode = one_of("mode", {"attention", "mask", "score"});
    look.arrangement = one_of("arrangement", {"explore", "compare", "teach"});
    look.curve = in.text("curve");
    look.color = in.text("color");
    if (!look.color.empty() && atlas_color(look.color) == nullptr)
        in.field("color").wanted("a colour of the atlas, such as \"sink_share\"");
    if (in.has("heads"))
        for (const std::string& place : in.texts("heads"))
            look.heads.push_back(read_head(place, in.field("heads")));
    look.zoom = in.whole("zoom", 0, 0, 64);
    return look;
}

Prediction read_prediction(const nlohmann::json& value, const JsonField& field, std::size_t n_claims) {
    const Object in(value, field,
                    {"question", "choices", "right", "low", "high", "claim", "words", "range", "part"});
    Prediction p;
    p.question = few_words(in, "question");
    if (p.question.empty()) in.self().bad("it has no question");
    if (in.has("choices")) {
        p.choices = in.texts("choices");
        if (p.choices.size() < 2 || p.choices.size() > 6) in.field("choices").wanted("2 to 6 choices");
        p.right = in.field("right").integer(0, static_cast<int>(p.choices.size()) - 1);
        return p;
    }
    if (in.has("low")) {
        p.kind = Prediction::Kind::slider;
        p.low = in.field("low").number(-1e9, 1e9);
        p.high = in.field("high").number(-1e9, 1e9);
        if (!(p.low < p.high)) in.field("high").wanted("a number above low");
        if (n_claims == 0) in.self().bad("a slider needs a claim that measures the true value");
        p.claim = in.whole("claim", 1, 1, static_cast<int>(n_claims)) - 1;
        return p;
    }
    p.kind = Prediction::Kind::token;
    p.tokens = read_tokens(in);
    if (p.tokens == TokenSet{}) in.self().bad("give choices, low and high, or words of the text to click");
    return p;
}

LessonControl read_play(const nlohmann::json& value, const JsonField& field) {
    const Object in(value, field, {"text", "lane", "key", "low", "high", "buttons"});
    LessonControl play;
    play.text = few_words(in, "text");
    play.lane = in.whole("lane", 0, 0, kMostPlacesInFile);
    if (in.has("key")) {
        play.key = in.text("key");
        play.low = in.field("low").number(0, 1e6);
        play.high = in.field("high").number(0, 1e6);
        if (!(play.low < play.high)) in.field("high").wanted("a number above low");
        named(in.field("key"), [&] { return parse_lane_spec(fmt::format("h2o:{}={}", play.key, play.low)); });
        return play;
    }
    const JsonField buttons = in.field("buttons");
    for (std::size_t i = 0, n = buttons.size(8); i < n; ++i) {
        const Object one(in.json("buttons").at(i), buttons.at(i), {"label", "do"});
        play.buttons.push_back({one.text("label"), read_commands(one, "do")});
        if (play.buttons.back().label.empty()) one.self().bad("it has no label");
    }
    return play;
}

LessonStep read_step(const nlohmann::json& value, const JsonField& field, const LessonRun& of_lesson) {
    const Object in(value, field,
                    {"title", "text", "run", "do", "look", "predict", "reveal", "play", "note"});
    LessonStep step;
    step.title = in.text("title");
    step.text = few_words(in, "text");
    if (step.text.empty()) in.self().bad("it has no text");
    if (in.has("run")) step.run = read_run(in.json("run"), in.field("run"), of_lesson);
    step.commands = read_commands(in, "do");
    if (in.has("look")) step.look = read_look(in.json("look"), in.field("look"));
    if (in.has("reveal")) {
        const Object reveal(in.json("reveal"), in.field("reveal"), {"do", "text", "claims"});
        step.reveal_commands = read_commands(reveal, "do");
        step.reveal = few_words(reveal, "text");
        if (reveal.has("claims")) {
            const JsonField claims = reveal.field("claims");
            for (std::size_t i = 0, n = claims.size(20); i < n; ++i)
                step.claims.push_back(read_claim(reveal.json("claims").at(i), claims.at(i)));
        }
    }
    if (in.has("predict"))
        step.predict = read_prediction(in.json("predict"), in.field("predict"), step.claims.size());
    if (in.has("play")) step.play = read_play(in.json("play"), in.field("play"));
    step.note = in.text("note", kMostLessonText);
    return step;
}

OrderedJson text_json(const LessonText& text) {
    if (text.file.empty()) return text.text;
    OrderedJson out = {{"file", text.file}};
    if (text.from != 0) out["from"] = text.from;
    if (text.bytes != 0) out["bytes"] = text.bytes;
    return out;
}

/// Writes all that differs from what reading starts with.
OrderedJson lesson_run_json(const LessonRun& run, const LessonRun& from) {
    OrderedJson out = OrderedJson::object();
    if (run.model != from.model) out["model"] = run.model;
    // A prompt resets what belongs to it, so all of that follows.
    const LessonRun fresh = with_prompt_of(from, run.prompt);
    const bool new_prompt = !(run.prompt == from.prompt) || !(run.then == from.then) ||
                            run.chat != from.chat || run.answer != from.answer || run.watch != from.watch ||
                            run.stop != from.stop;
    const LessonRun& base = new_prompt ? fresh : from;
    if (new_prompt) out["prompt"] = text_json(run.prompt);
    if (!(run.then == base.then)) out["then"] = text_json(run.then);
    if (run.lanes != base.lanes) out["lanes"] = run.lanes;
    if (run.follow != base.follow) out["follow"] = run.follow;
    if (run.chat != base.chat) out["chat"] = run.chat;
    if (run.answer != base.answer) out["answer"] = run.answer;
    if (run.watch != base.watch) out["watch"] = run.watch;
    if (run.stop != base.stop) out["stop"] = run.stop;
    return out;
}

OrderedJson commands_json(const std::vector<LessonCommand>& commands) {
    OrderedJson out = OrderedJson::array();
    for (const LessonCommand& command : commands) out.push_back(command.text);
    return out;
}

void add_tokens(OrderedJson& out, const TokenSet& tokens) {
    if (!tokens.words.empty()) out["words"] = tokens.words;
    if (tokens.range) out["range"] = {tokens.range->first, tokens.range->last};
    if (tokens.part != TokenSet::Part::all)
        out["part"] = tokens.part == TokenSet::Part::prompt ? "prompt" : "generated";
}

OrderedJson claim_json(const Claim& claim) {
    OrderedJson out = {{"measure", claim.measure}};
    if (claim.lane != 0) out["lane"] = claim.lane;
    if (claim.other != 0) out["other"] = claim.other;
    add_tokens(out, claim.tokens);
    if (claim.layer >= 0) out["layer"] = claim.layer;
    if (claim.head >= 0) out["head"] = claim.head;
    if (claim.steps) out["steps"] = {claim.steps->first, claim.steps->second};
    if (claim.more_than != 0) out["more_than"] = claim.more_than;
    if (claim.over) out["over"] = *claim.over;
    for (const auto& [name, is] : kComparisons)
        if (is == claim.is) {
            if (is == Claim::Is::contains || is == Claim::Is::lacks)
                out[name] = claim.text;
            else
                out[name] = claim.value;
        }
    return out;
}

OrderedJson look_json(const Look& look) {
    OrderedJson out = OrderedJson::object();
    if (look.pane != Pane::none) out["at"] = pane_name(look.pane);
    add_tokens(out, look.tokens);
    if (look.lane) out["lane"] = *look.lane;
    if (look.layer) out["layer"] = *look.layer;
    if (look.head) out["head"] = *look.head;
    if (look.other) out["other"] = *look.other;
    if (!look.mode.empty()) out["mode"] = look.mode;
    if (!look.arrangement.empty()) out["arrangement"] = look.arrangement;
    if (!look.curve.empty()) out["curve"] = look.curve;
    if (!look.color.empty()) out["color"] = look.color;
    for (const HeadPlace& place : look.heads)
        out["heads"].push_back(fmt::format("L{}.H{}", place.layer, place.head));
    if (look.zoom != 0) out["zoom"] = look.zoom;
    return out;
}

OrderedJson prediction_json(const Prediction& p) {
    OrderedJson out = {{"question", p.question}};
    switch (p.kind) {
        case Prediction::Kind::choice:
            out["choices"] = p.choices;
            out["right"] = p.right;
            break;
        case Prediction::Kind::slider:
            out["low"] = p.low;
            out["high"] = p.high;
            out["claim"] = p.claim + 1;
            break;
        case Prediction::Kind::token:
            add_tokens(out, p.tokens);
            break;
    }
    return out;
}

OrderedJson play_json(const LessonControl& play) {
    OrderedJson out = OrderedJson::object();
    if (!play.text.empty()) out["text"] = play.text;
    if (!play.key.empty()) {
        out["lane"] = play.lane;
        out["key"] = play.key;
        out["low"] = play.low;
        out["high"] = play.high;
        return out;
    }
    if (play.lane != 0) out["lane"] = play.lane;
    out["buttons"] = OrderedJson::array();
    for (const LessonControl::Button& button : play.buttons)
        out["buttons"].push_back({{"label", button.label}, {"do", commands_json(button.commands)}});
    return out;
}

OrderedJson step_json(const LessonStep& step, const LessonRun& of_lesson) {
    OrderedJson out = OrderedJson::object();
    if (!step.title.empty()) out["title"] = step.title;
    out["text"] = step.text;
    if (step.run) out["run"] = lesson_run_json(*step.run, of_lesson);
    if (!step.commands.empty()) out["do"] = commands_json(step.commands);
    if (!(step.look == Look{})) out["look"] = look_json(step.look);
    if (step.predict) out["predict"] = prediction_json(*step.predict);
    OrderedJson reveal = OrderedJson::object();
    if (!step.reveal_commands.empty()) reveal["do"] = commands_json(step.reveal_commands);
    if (!step.reveal.empty()) reveal["text"] = step.reveal;
    for (const Claim& claim : step.claims) reveal["claims"].push_back(claim_json(claim));
    if (!reveal.empty()) out["reveal"] = std::move(reveal);
    if (step.play) out["play"] = play_json(*step.play);
    if (!step.note.empty()) out["note"] = step.note;
    return out;
}

}  // namespace

Lesson parse_lesson(std::string_view text, std::string_view name) {
    const std::string file(name);
    const nlohmann::json root = json_object_of(text, file, kMostValues);
    const Object in(root, JsonField(root, file),
                    {"version", "number", "title", "question", "note", "run", "steps"});
    (void)in.field("version").integer(1, 1);
    Lesson lesson;
    lesson.number = in.whole("number", 0, 0, 9999);
    lesson.title = in.text("title");
    lesson.question = few_words(in, "question");
    if (lesson.title.empty()) in.field("title").wanted("a title");
    if (lesson.question.empty()) in.field("question").wanted("a question");
    lesson.note = in.text("note", kMostLessonText);
    lesson.run = read_run(in.has("run") ? root.at("run") : nlohmann::json::object(),
                          in.has("run") ? in.field("run") : in.self(), {});
    const JsonField steps = in.field("steps");
    const std::size_t n = steps.size(100);
    if (n == 0) steps.wanted("at least one step");
    for (std::size_t i = 0; i < n; ++i)
        lesson.steps.push_back(read_step(root.at("steps").at(i), steps.at(i), lesson.run));
    return lesson;
}

Lesson read_lesson(const std::filesystem::path& file) {
    return parse_lesson(read_text_file(file, kMostLessonBytes), file.string());
}

std::string lesson_text(const Lesson& lesson) {
    OrderedJson out = {{"version", 1}};
    if (lesson.number != 0) out["number"] = lesson.number;
    out["title"] = lesson.title;
    out["question"] = lesson.question;
    if (!lesson.note.empty()) out["note"] = lesson.note;
    out["run"] = lesson_run_json(lesson.run, {});
    out["steps"] = OrderedJson::array();
    for (const LessonStep& step : lesson.steps) out["steps"].push_back(step_json(step, lesson.run));
    return out.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

void write_lesson(const Lesson& lesson, const std::filesystem::path& file) {
    write_text_file(file, lesson_text(lesson), Durability::sync);
}

std::string words_of(const LessonText& text) {
    if (text.file.empty()) return text.text;
    const std::filesystem::path file = find_assets() / text.file;
    std::error_code ignored;
    // The message goes into printed pages, so it names no folder of this machine.
    if (!std::filesystem::is_regular_file(file, ignored))
        fail(ErrorCode::bad_file, "the lesson wants a text of Keyhole, assets/{}, which is not here",
             shown_text(text.file));
    std::string all = read_text_file(file, kMostLessonBytes);
    if (text.bytes == 0 && text.from == 0) {
        while (all.ends_with('\n')) all.pop_back();  // after a line end a model would not answer
        return all;
    }
    const std::size_t from = to_index(text.from);
    if (from >= all.size())
        fail(ErrorCode::bad_file, "assets/{} has {} bytes, the lesson wants those from {} on",
             shown_text(text.file), all.size(), from);
    std::string part = all.substr(from, text.bytes == 0 ? std::string::npos : to_index(text.bytes));
    // Not in the middle of a character.
    std::size_t begin = 0;
    const auto inside = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
    while (begin < part.size() && inside(part[begin])) ++begin;
    std::size_t end = part.size();
    if (from + end < all.size())
        while (end > begin && inside(all[from + end])) --end;
    return part.substr(begin, end - begin);
}

}  // namespace keyhole
