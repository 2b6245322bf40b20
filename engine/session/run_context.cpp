#include "engine/session/run_context.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/policy/system_part.h"
#include "engine/run/prompt.h"

#include <algorithm>
#include <atomic>

namespace keyhole {

namespace {

std::uint64_t next_run_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

RunStart describe_start(const Model& model, const RunSpec& spec) {
    RunStart start;
    for (const LaneSpec& lane : spec.lanes) start.lanes.push_back(format_lane_spec(lane));
    start.sampling = format_command(SetSampling{spec.sampling});
    start.follow = spec.follow;
    start.ignore_eos = spec.ignore_eos;
    start.tokens_given = !spec.prompt_tokens.empty();
    if (spec.chat) {
        ChatTemplate chat = chat_template_of(model);
        start.chat = std::move(chat.form);
        start.chat_parts = std::move(chat.parts);
    }
    start.forced = spec.forced;
    start.answer_end = spec.answer_end;
    start.right_answer = spec.right_answer;
    start.watch = spec.watch;
    start.looks = spec.looks;
    return start;
}

/// Throws an Error if the model cannot read the run's tokens.
void check_tokens(const RunInfo& run) {
    const ModelConfig& config = run.config;
    check_fits(config, run.prompt_tokens);
    if (config.positions == PositionKind::learned && run.n_prompt() + run.n_generate > config.n_ctx)
        fail(ErrorCode::wrong_use,
             "{} tokens after a prompt of {} go beyond the {} positions that the model has learned; generate "
             "fewer or shorten the prompt",
             run.n_generate, run.n_prompt(), config.n_ctx);
    for (int token : run.start.forced)
        if (token < 0 || token >= config.n_vocab)
            fail(ErrorCode::wrong_use, "there is no token {} to force; the model has 0 to {}", token,
                 config.n_vocab - 1);
    for (int token : run.prompt_tokens)
        if (token < 0 || token >= config.n_vocab)
            fail(ErrorCode::bad_file,
                 "the tokenizer of {} gives token {}, the model has {}; tokenizer and model do not belong "
                 "together",
                 run.model_path, token, config.n_vocab);
}

std::shared_ptr<const RunInfo> describe_run(const Model& model, const Backend& backend, const RunSpec& spec) {
    if (spec.lanes.empty())
        fail(ErrorCode::wrong_use, "a session needs at least one lane; add one such as 'full'");
    auto run = std::make_shared<RunInfo>();
    run->id = next_run_id();
    run->model_path = model.path().string();
    run->model_hash = model.hash();
    run->config = model.config();
    run->layout = model.layout();
    run->backend = backend.name();
    run->prompt = spec.prompt;
    run->prompt_tokens = prompt_tokens(model, spec);
    run->seed = spec.seed;
    run->n_generate = spec.n_generate;
    run->start = describe_start(model, spec);
    check_tokens(*run);
    const Tokenizer& tokenizer = model.tokenizer();
    for (int id = 0; id < run->config.n_vocab; ++id) {
        const bool known = id < tokenizer.n_vocab();
        run->token_display.push_back(known ? tokenizer.display(id) : fmt::format("<{}>", id));
        run->token_bytes.push_back(known ? tokenizer.token_bytes(id) : std::string());
    }
    return run;
}

/// Returns how many tokens of a chat's prompt stand before what the user says: the system part, and what the
/// template writes up to there. 0: the prompt is no chat, or its template is unknown.
int n_system_tokens(const Model& model, const std::vector<int>& tokens) {
    const std::string opening = chat_template_of(model).parts.opening;
    std::string text;
    for (const int token : tokens) text += model.tokenizer().token_bytes(token);
    const std::size_t at = opening.empty() ? std::string::npos : text.find(opening);
    if (at == std::string::npos) return 0;
    std::size_t end = 0;
    int n = 0;
    while (end < at + opening.size()) end += model.tokenizer().token_bytes(tokens[to_index(n++)]).size();
    return n;
}

/// Puts positions in place of `protect=system` and `spans=fair` in the lanes of a run.
RunSpec with_system_parts(const Model& model, RunSpec spec) {
    if (std::none_of(spec.lanes.begin(), spec.lanes.end(),
                     [](const LaneSpec& lane) { return asks_for_system_part(lane.policy); }))
        return spec;
    const int n = spec.chat ? n_system_tokens(model, prompt_tokens(model, spec)) : 0;
    for (LaneSpec& lane : spec.lanes) lane = with_system_part(std::move(lane), n);
    return spec;
}

}  // namespace

RunContext::RunContext(std::shared_ptr<const Model> its_model, Backend& its_backend, RunSpec spec,
                       RowSink* its_sink)
    : model(std::move(its_model)),
      weight_files(*model),
      backend(its_backend),
      start(with_system_parts(*model, std::move(spec))),
      sink(its_sink),
      run(describe_run(*model, backend, start)) {
    for (const LaneSpec& lane : start.lanes) {
        check(lane);
        if (!needs_future(lane.policy)) continue;
        if (const std::string fault = future_fault(*this, start.follow, start.lanes.front()); !fault.empty())
            fail(ErrorCode::wrong_use, "lane '{}': {}", shown_text(format_lane_spec(lane)), fault);
    }
}

namespace {

/// Returns why the spans of a lane cannot share its budget; empty: they can, or do not.
std::string fair_fault(const PolicyParams& params, int n_prompt) {
    const Spans spans = spans_of(params.spans.text, nullptr);
    if (!spans.fair) return {};
    if (spans.named.empty())
        return "spans=fair divides the budget over the system part of a chat and the rest, and this prompt "
               "is none; chat (--chat), or name the spans: spans=(fair rules@0..31 text@32..)";
    const NamedSpan& last = spans.named.back();
    if (last.last >= n_prompt - 1) return {};
    return fmt::format(
        "fair spans cover the prompt, which has {} tokens, and the last one ends at {}; leave "
        "its end open: {}@{}..",
        n_prompt, last.last, last.name, last.first);
}

/// Returns a fault where the tokens that a value of `protect` names by their place, with recent, exceed the
/// budget of a head that has this value.
std::string protection_fault(const std::string& text, const PolicyParams& params,
                             const ResolvedPolicy& policy) {
    const std::size_t dots = text.find("..");
    int first = 0, last = policy.n_prompt - 1;
    if (dots != std::string::npos) {
        first = number_from_text<int>(std::string_view(text).substr(0, dots)).value_or(0);
        last = number_from_text<int>(std::string_view(text).substr(dots + 2)).value_or(-1);
    } else if (text != "prompt") {
        return {};  // a formula: known at a selection
    }
    const std::int64_t held = std::int64_t{last} - first + 1 + std::min(policy.sinks, first);
    const FormulaRef protect = protect_formula(text, nullptr, formula_setting(params));
    const bool has_own = policy.variant_of_head.empty() || std::ranges::count(policy.variant_of_head, -1) > 0;
    std::string fault;
    (void)policy.any([&](const ResolvedPolicy& one) {
        if (&one == &policy && !has_own) return false;  // each head has values of its own
        if (!(one.protect == protect) || !one.evicts() || held + one.recent <= one.budget) return false;
        fault = fmt::format("protect={} holds {} tokens{}, and the budget is {}", text, held,
                            one.recent > 0 ? fmt::format(" and recent {} more", one.recent) : "", one.budget);
        return true;
    });
    return fault;
}

}  // namespace

namespace {

/// Returns whether a formula of selections names what follows from queries before their rotation.
bool names_queries(const PolicyParams& params) {
    return names_anywhere(params, Quantity::expected) || names_anywhere(params, Quantity::tri);
}

[[noreturn]] void refuse_lane(const LaneSpec& spec, std::string_view fault) {
    fail(ErrorCode::wrong_use, "lane '{}': {}", shown_text(format_lane_spec(spec)), fault);
}

/// Returns why a calibration is not of the model; empty: it is.
std::string calibration_fault_of(const CalibrationRef& of, const ModelConfig& config) {
    if (of.read == nullptr)
        return fmt::format(
            "calibration={} was not read: no text but your own opens files; give the lane anew", of.path);
    const Calibration& known = *of.read;
    if (known.n_layers == config.n_layers && known.n_heads == config.n_heads &&
        known.head_dim == config.head_dim && known.n_pairs == config.rotary.dims / 2)
        return {};
    return fmt::format(
        "calibration is of {} layers of {} query heads with {} channels, and the model has {} of {} with {}; "
        "measure the queries with this model",
        known.n_layers, known.n_heads, known.head_dim, config.n_layers, config.n_heads, config.head_dim);
}

}  // namespace

std::string lane_fault(const Model& model, const LaneSpec& spec) {
    std::vector<std::string> faults = validate(spec.policy);
    if (const std::string fault = check_sharing(spec.sharing, model.config()); !fault.empty())
        faults.push_back(fault);
    if (faults.empty())
        faults = check_overrides(spec.policy, head_grid(layout_of(model.config(), spec.sharing)));
    if (faults.empty() && spec.policy.positions != Positions::original &&
        model.config().positions == PositionKind::learned)
        faults.push_back(fmt::format(
            "positions other than original need keys that can be moved, and those of a {} model are learned",
            model.config().family));
    if (faults.empty() && spec.policy.positions != Positions::original &&
        model.config().rotary.changes_with_length())
        faults.push_back(
            "positions other than original need one set of rotary frequencies, and this model's change with "
            "the text's length");
    if (faults.empty() && names_anywhere(spec.policy, Quantity::wvnorm) &&
        std::any_of(model.weights().layers.begin(), model.weights().layers.end(),
                    [](const LayerWeights& layer) { return layer.o.data == nullptr; }))
        faults.push_back(
            "wvnorm, which critical ranks by, needs the output projection of each head, and a "
            "layer of this model has none");
    if (faults.empty() && spec.policy.calibration)
        if (std::string fault = calibration_fault_of(spec.policy.calibration, model.config()); !fault.empty())
            faults.push_back(std::move(fault));
    if (faults.empty() && model.config().rotary.dims == 0 && names_queries(spec.policy))
        faults.push_back(
            "expected and tri look at how queries turn with their position, and those of this model do not "
            "turn: it has no rotary positions");
    return faults.empty() ? std::string() : faults.front();
}

void check_lanes(const Model& model, std::span<const LaneSpec> lanes) {
    for (const LaneSpec& lane : lanes)
        if (const std::string fault = lane_fault(model, lane); !fault.empty()) refuse_lane(lane, fault);
}

std::string RunContext::fault_of(const LaneSpec& spec) const {
    std::vector<std::string> faults;
    if (std::string fault = lane_fault(*model, spec); !fault.empty()) faults.push_back(std::move(fault));
    if (faults.empty() && needs_repeats(spec.policy))
        if (std::string fault = repeats_fault(*this); !fault.empty()) faults.push_back(std::move(fault));
    if (faults.empty() && protects_system_part(spec.policy))
        faults.push_back(
            "protect=system protects the system part of a chat, and this prompt is none; chat "
            "(--chat), with a model that has a chat template, or name positions");
    if (faults.empty())
        if (std::string fault = fair_fault(spec.policy, n_prompt()); !fault.empty())
            faults.push_back(std::move(fault));
    const std::vector<std::string> protects = spec.policy.formula_texts(Override::Field::protect);
    if (faults.empty() && (protects.size() > 1 || protects.front() != "none")) {
        const ResolvedPolicy policy = resolve(spec.policy, n_prompt(), start.n_generate,
                                              head_grid(layout_of(model->config(), spec.sharing)));
        for (const std::string& text : protects)
            if (std::string fault = protection_fault(text, spec.policy, policy); !fault.empty())
                faults.push_back(std::move(fault));
    }
    return faults.empty() ? std::string() : faults.front();
}

LaneSpec RunContext::with_system_part(LaneSpec spec) const {
    if (!asks_for_system_part(spec.policy)) return spec;
    const int n = start.chat ? n_system_tokens(*model, run->prompt_tokens) : 0;
    return keyhole::with_system_part(std::move(spec), n);
}

Command RunContext::with_system_part(Command command) const {
    const auto put = [this](LaneSpec& spec) { spec = with_system_part(std::move(spec)); };
    if (auto* set = std::get_if<SetLane>(&command)) put(set->spec);
    if (auto* add = std::get_if<AddLane>(&command)) put(add->spec);
    if (auto* restore = std::get_if<RestoreLane>(&command)) put(restore->spec);
    if (auto* fork = std::get_if<ForkLane>(&command); fork != nullptr && fork->spec) put(*fork->spec);
    return command;
}

void RunContext::check(const LaneSpec& spec) const {
    if (const std::string fault = fault_of(spec); !fault.empty()) refuse_lane(spec, fault);
    (void)backend.kv_type(spec.policy.kv_dtype);
}

}  // namespace keyhole
