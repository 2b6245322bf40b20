#include "app/state/attribution_run.h"

#include "app/state/child_job.h"
#include "app/study/attribution_file.h"
#include "app/study/budget_forms.h"
#include "engine/base/error.h"
#include "engine/base/fnv.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/number.h"
#include "engine/base/staged_folder.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr const char* kName = "the attribution";

/// Returns the share that the last line of progress names: "keyhole: attribute: 37 %, 12 s left".
double share_in(std::string_view said) {
    const std::size_t end = said.rfind(" %");
    if (end == std::string_view::npos) return 0;
    const std::size_t begin = said.find_last_not_of("0123456789", end - 1) + 1;
    return number_from_text<double>(said.substr(begin, end - begin), 0.0, 100.0).value_or(0) / 100;
}

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

/// Returns the words of the command but its folder.
std::vector<std::string> command_of(const AttributionRequest& request, const fs::path& model,
                                    const LaneSpec& lane) {
    std::vector<std::string> words = {
        "attribute", "--model",  model.string(), "--lane",    format_lane_spec(lane),
        "--by",      request.by, "--rank",       request.rank};
    if (request.takes) words.emplace_back("--take");
    if (request.questions == "prompt") return words;
    for (const std::string& word :
         {std::string("--task"), request.questions, std::string("--samples"),
          std::to_string(request.n_questions), std::string("--context"), std::to_string(request.context)})
        words.push_back(word);
    return words;
}

/// Returns the data file that asks the run's prompt.
std::string data_text(const PromptQuestion& question) {
    const nlohmann::json line = {
        {"prompt", question.prompt}, {"choices", {question.answer, question.other}}, {"answer", 0}};
    return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

TokenRange range_of(const TokenSpan& span) {
    return {span.first, span.last};
}

/// Returns the lane with a group of tokens beside its budget.
LaneSpec with_group(const LaneSpec& lane, const std::string& group, const std::optional<TokenSpan>& watched) {
    const Amount& budget = lane.policy.budget;
    if (group == "answer") {
        if (!watched)
            fail(ErrorCode::wrong_use, "watch the words that hold the answer first: pick them and press W");
        return lane_with_tokens(lane, range_of(*watched));
    }
    if (budget.unit != Amount::Unit::tokens)
        fail(ErrorCode::wrong_use, "the lane needs a budget in tokens, such as budget=64");
    if (group == "sinks")
        return changed_lane_spec(lane, fmt::format("budget={:.0f},sinks={}", budget.value + kGroupSinks,
                                                   lane.policy.sinks + kGroupSinks));
    const int recent = resolve(lane.policy, ResolvedPolicy::kUnlimited / 2, 1).recent;
    return changed_lane_spec(
        lane, fmt::format("budget={:.0f},recent={}", budget.value + kGroupRecent, recent + kGroupRecent));
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
    std::vector<std::string> command = command_of(request, model, asked);
    std::string key;
    for (const std::string& word : command) key += word + "\n";
    const std::string data = request.questions == "prompt" && question ? data_text(*question) : "";
    made_in_ = folder / fmt::format("{:016x}", fnv1a(key + data));
    std::error_code error;
    fs::create_directories(folder, error);
    if (!data.empty()) {
        const fs::path file = folder / (made_in_.filename().string() + ".jsonl");
        write_text_file(file, data);
        command.insert(command.end(), {"--data", file.string()});
    }
    command.insert(command.end(), {"--out", made_in_.string()});
    command.insert(command.begin(), program.string());
    of_prompt_ = request.questions == "prompt";
    rank_ = request.rank;
    fault_.clear();
    began_ = std::chrono::steady_clock::now();
    job_.begin(
        [command = std::move(command)](const BackgroundJob<bool>::Progress& progress) {
            run_child(command, {{"KEYHOLE_PROGRESS", "0.3"}}, kName,
                      [&](std::string_view said) { return progress(share_in(said)); });
            return true;
        },
        std::move(wake));
    was_running_ = true;
}

double AttributionRun::seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

bool AttributionRun::refresh() {
    const bool runs = running();
    const bool ended = std::exchange(was_running_, runs) && !runs;
    if (!ended || !job_.fault().empty()) return runs || ended;
    const fs::path file = made_in_ / "attribution.json";
    try {
        stored_ =
            std::make_shared<const StoredAttribution>(read_attribution(read_text_file(file), file.string()));
        ShownAttribution shown = shown_of(stored_->found, rank_from_word(rank_));
        shown.of_prompt = of_prompt_;
        shown_ = std::make_unique<const ShownAttribution>(std::move(shown));
    } catch (const Error& e) {
        fault_ = e.what();
    }
    return true;
}

const StoredAttribution& AttributionRun::need() const {
    if (stored_ == nullptr) fail(ErrorCode::wrong_use, "nothing was found yet; run an attribution first");
    return *stored_;
}

LaneSpec AttributionRun::with_part(const LaneSpec& lane, std::size_t part,
                                   const std::optional<TokenSpan>& watched) const {
    const Attribution& found = need().found;
    const std::vector<std::size_t> order = ranked(found, rank_from_word(rank_));
    if (part >= order.size()) fail(ErrorCode::wrong_use, "there are {} parts", order.size());
    CachePart chosen = found.effects[order[part]].part;
    if (found.kind == PartKind::group) return with_group(lane, chosen.words, watched);
    if (chosen.tokens) return lane_with_tokens(lane, *chosen.tokens);
    chosen.query_head = -1;
    return lane_with_part(lane, chosen, Intervention::give_back);
}

LaneSpec AttributionRun::with_budget(const LaneSpec& lane, std::string_view form, int budget, int rest,
                                     int context) const {
    const Attribution& found = need().found;
    const auto known = budget_form_from_name(form);
    if (!known) {
        std::string names;
        for (const BudgetFormRow& row : budget_forms()) names += fmt::format(" {}", row.name);
        fail(ErrorCode::wrong_use, "there is no budget '{}'; there are{}", shown_text(form), names);
    }
    if (found.kind != PartKind::head && found.kind != PartKind::layer)
        fail(ErrorCode::wrong_use, "budgets are of KV heads or layers; give those back first");
    return lane_with_budget(lane, *known, found, {budget, rest, context}, rank_from_word(rank_));
}

std::vector<BudgetChoice> budget_choices() {
    std::vector<BudgetChoice> choices;
    for (const BudgetFormRow& row : budget_forms()) choices.push_back({row.name, row.help});
    return choices;
}

}  // namespace keyhole
