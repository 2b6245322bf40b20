#include "app/state/attribution_run.h"

#include "app/base/command_text.h"
#include "app/study/attribution_file.h"
#include "app/study/head_files.h"
#include "engine/base/error.h"
#include "engine/base/fnv.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/staged_folder.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

AttributedPart shown_part(const PartEffect& effect) {
    AttributedPart part;
    part.name = part_name(effect.part);
    part.words = effect.part.words;
    if (effect.part.words.empty()) {
        part.layer = effect.part.layer;
        part.head = std::max(effect.part.query_head >= 0 ? effect.part.query_head : effect.part.kv_head, 0);
    }
    if (effect.part.tokens) part.tokens = TokenSpan{effect.part.tokens->first, effect.part.tokens->last};
    part.nats = effect.nats.value;
    part.low = effect.nats.interval.low;
    part.high = effect.nats.interval.high;
    part.right = effect.right.value;
    part.kl = effect.kl.value;
    part.p = effect.p;
    part.is_sure = effect.is_sure;
    return part;
}

ShownAttribution shown_of(const Attribution& found, RankBy rank) {
    ShownAttribution shown;
    shown.by = part_kind_word(found.kind);
    shown.lane = format_lane_spec(found.lane);
    shown.takes = found.intervention == Intervention::take;
    shown.n_questions = found.n_questions;
    shown.lost = found.lost.value;
    shown.right = found.lane_right.value;
    shown.right_full = found.full_right.value;
    for (const std::size_t i : ranked(found, rank)) {
        const AttributedPart& part = shown.parts.emplace_back(shown_part(found.effects[i]));
        shown.n_layers = std::max(shown.n_layers, part.layer + 1);
        shown.n_heads = std::max(shown.n_heads, part.head + 1);
        shown.most = std::max(shown.most, std::abs(part.nats));
    }
    return shown;
}

/// Returns the words of the command but its files.
std::vector<std::string> command_of(const AttributionRequest& request, const fs::path& model,
                                    const LaneSpec& lane, bool chat) {
    std::vector<std::string> words = {
        "attribute", "--model",  model.string(), "--lane",    format_lane_spec(lane),
        "--by",      request.by, "--rank",       request.rank};
    if (request.takes) words.emplace_back("--take");
    if (request.questions == "prompt") {
        if (chat) words.emplace_back("--chat");
        return words;
    }
    for (const std::string& word :
         {std::string("--task"), request.questions, std::string("--samples"),
          std::to_string(request.n_questions), std::string("--context"), std::to_string(request.context)})
        words.push_back(word);
    return words;
}

/// Returns the data file that asks the run's prompt.
std::string data_text(const PromptQuestion& question) {
    const nlohmann::json line = {{"prompt", question.prompt}, {"target", question.answer}};
    return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// Returns the tokens of a group in the run's prompt.
TokenRange tokens_of_group(const CachePart& group, int n_prompt, const std::optional<TokenSpan>& watched) {
    if (group.words == "answer" && !watched)
        fail(ErrorCode::wrong_use, "watch the words that hold the answer first: pick them and press W");
    return group_tokens(group, n_prompt, watched ? TokenRange{watched->first, watched->last} : TokenRange{});
}

BudgetForm form_of(std::string_view name, const Attribution& found) {
    const auto known = budget_form_from_name(name);
    if (!known) {
        std::string names;
        for (const BudgetFormRow& row : budget_forms()) names += fmt::format(" {}", row.name);
        fail(ErrorCode::wrong_use, "there is no budget '{}'; there are{}", shown_text(name), names);
    }
    if (found.kind != PartKind::head && found.kind != PartKind::layer)
        fail(ErrorCode::wrong_use, "budgets are of KV heads or layers; give those back first");
    return *known;
}

}  // namespace

AttributionRun::AttributionRun() = default;
AttributionRun::~AttributionRun() = default;

void AttributionRun::begin(const AttributionRequest& request, const fs::path& model, const LaneSpec& lane,
                           const std::optional<PromptQuestion>& question, std::function<void()> wake) {
    if (running()) fail(ErrorCode::wrong_use, "an attribution is being made; wait for it or cancel it");
    if (folder.empty()) fail(ErrorCode::io, "no folder for findings: set HOME or XDG_DATA_HOME");
    if (!part_kind_from_word(request.by))
        fail(ErrorCode::wrong_use, "by={}: parts are head, query-head, layer, group or token",
             shown_text(request.by));
    if (request.by == "token" && request.questions != "prompt")
        fail(ErrorCode::wrong_use, "tokens are those of one text; choose the run's own prompt");
    LaneSpec asked = lane;
    asked.name.clear();
    asked.policy.shadow = false;
    (void)start_lane(asked, Intervention::give_back);  // refuses a lane without a budget
    std::vector<std::string> command = command_of(request, model, asked, question && question->chat);
    std::string key;
    for (const std::string& word : command) key += word + "\n";
    const std::string data = request.questions == "prompt" && question ? data_text(*question) : "";
    begun_.folder = folder / fmt::format("{:016x}", fnv1a(key + data));
    std::error_code error;
    fs::create_directories(folder, error);
    if (!data.empty()) {
        const fs::path file = folder / (begun_.folder.filename().string() + ".jsonl");
        write_text_file(file, data);
        command.insert(command.end(), {"--data", file.string()});
    }
    begun_.command = "keyhole";
    for (const std::string& word : command) begun_.command += " " + shell_word(word);
    command.insert(command.end(), {"--out", begun_.folder.string()});
    command.insert(command.begin(), program.string());
    begun_.of_prompt = request.questions == "prompt";
    begun_.rank = request.rank;
    fault_.clear();
    job_.begin(std::move(command), "the attribution", std::move(wake));
}

bool AttributionRun::refresh() {
    const ChildJob::State state = job_.refresh();
    if (state != ChildJob::State::ended || !job_.fault().empty()) return state != ChildJob::State::idle;
    const fs::path file = begun_.folder / "attribution.json";
    try {
        stored_ =
            std::make_shared<const StoredAttribution>(read_attribution(read_text_file(file), file.string()));
        ShownAttribution shown = shown_of(stored_->found, rank_from_word(begun_.rank));
        shown.of_prompt = begun_.of_prompt;
        shown_ = std::make_unique<const ShownAttribution>(std::move(shown));
        found_ = begun_;
    } catch (const Error& e) {
        fault_ = e.what();
    }
    return true;
}

const StoredAttribution& AttributionRun::need() const {
    if (stored_ == nullptr) fail(ErrorCode::wrong_use, "nothing was found yet; run an attribution first");
    return *stored_;
}

LaneSpec AttributionRun::with_part(const LaneSpec& lane, std::size_t part, int n_prompt,
                                   const std::optional<TokenSpan>& watched) const {
    const Attribution& found = need().found;
    const std::vector<std::size_t> order = ranked(found, rank_from_word(found_.rank));
    if (part >= order.size()) fail(ErrorCode::wrong_use, "there are {} parts", order.size());
    CachePart chosen = found.effects[order[part]].part;
    if (found.kind == PartKind::group) chosen.tokens = tokens_of_group(chosen, n_prompt, watched);
    if (chosen.tokens) return lane_with_tokens(lane, *chosen.tokens);
    chosen.query_head = -1;
    return lane_with_part(lane, chosen, Intervention::give_back);
}

LaneSpec AttributionRun::with_budget(const LaneSpec& lane, std::string_view form, int budget, int rest,
                                     int context) const {
    const Attribution& found = need().found;
    return lane_with_budget(lane, form_of(form, found), found, {budget, rest, context},
                            rank_from_word(found_.rank));
}

std::vector<std::string> AttributionRun::write_heads(const fs::path& to, const LaneSpec& lane,
                                                     std::string_view form, int budget, int rest, int context,
                                                     const KvLayout& layout,
                                                     const std::string& made_by) const {
    const Attribution& found = need().found;
    const BudgetTotal total{budget, rest, context};
    const auto tokens = budget_tokens(form_of(form, found), found, total, rank_from_word(found_.rank));
    if (!tokens)
        fail(ErrorCode::wrong_use,
             "with {} the policy shares its budget itself, head by head, as it runs; no file says that: "
             "choose uniform, streaming, whole or gain",
             form);
    make_folder(to, "the budgets");
    return write_head_files(to, {layout, found, *tokens, total, lane.policy.sinks, made_by});
}

std::vector<BudgetChoice> budget_choices() {
    std::vector<BudgetChoice> choices;
    for (const BudgetFormRow& row : budget_forms()) choices.push_back({row.name, row.help});
    return choices;
}

}  // namespace keyhole
