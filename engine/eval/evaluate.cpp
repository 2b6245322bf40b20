#include "engine/eval/evaluate.h"

#include "engine/base/counted.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/model/digest.h"
#include "engine/model/kv_default.h"
#include "engine/model/kv_sharing.h"
#include "engine/model/model_identity.h"
#include "engine/run/prompt.h"
#include "engine/trace/lane_failure.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

namespace keyhole {

namespace {

/// Returns the tokens that the tokenizer puts before a text.
std::vector<int> begin_of_text(const Tokenizer& tokenizer) {
    std::vector<int> with = tokenizer.encode("a"), without = tokenizer.encode("a", false);
    if (with.size() <= without.size()) return {};
    with.resize(with.size() - without.size());
    return with;
}

/// Counts the tokens of pieces of text and remembers them, since most pieces come again.
class TokenCounter {
  public:
    explicit TokenCounter(std::shared_ptr<const Model> model) : model_(std::move(model)) {}
    int operator()(const std::string& text) {
        const auto [at, is_new] = known_.try_emplace(text, 0);
        if (is_new) at->second = static_cast<int>(model_->tokenizer().encode(text, false).size());
        return at->second;
    }

  private:
    std::shared_ptr<const Model> model_;
    std::unordered_map<std::string, int> known_;
};

/// Returns how many tokens of a text are also those of a longer text that begins with it. A token may span
/// the text's end, and belongs to what follows.
std::ptrdiff_t count_equal(const Tokenizer& tokenizer, const std::string& text,
                           const std::vector<int>& longer) {
    const std::vector<int> own = tokenizer.encode(text);
    return std::mismatch(own.begin(), own.end(), longer.begin(), longer.end()).first - own.begin();
}

/// What each lane has evicted so far.
using GoneTokens = std::vector<std::vector<Eviction>>;

void note_gone(const StepTrace& step, GoneTokens& gone) {
    gone.resize(step.lanes.size());
    for (std::size_t i = 0; i < gone.size(); ++i)
        gone[i].insert(gone[i].end(), step.lanes[i].evictions.begin(), step.lanes[i].evictions.end());
}

/// Notes where the answer is, and what each lane holds of it now. n_read: tokens before the answer or, where
/// the question comes later, before the question.
void note_place(const Question& question, const Model& model, const StepTrace& step, const GoneTokens& gone,
                std::size_t n_read, std::vector<Outcome>& outcomes) {
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        outcomes[i].distance = question.distance;
        if (!question.place) continue;
        const LaneRecord& lane = step.lanes[i];
        const KvLayout& layout = lane.info->layout != nullptr ? *lane.info->layout : model.layout();
        outcomes[i].depth = question.place.first / static_cast<double>(n_read);
        outcomes[i].held = held_share(question.place, gone[i], layout.n_kv_heads());
    }
}

std::string stripped_of(const std::string& question) {
    return question.substr(std::min(question.find_first_not_of(" \n"), question.size()));
}

/// The tokens of a task's prompt and answer, and how many the prompt has.
struct TaskTokens {
    std::vector<int> whole;
    std::ptrdiff_t n_prompt = 0;
};

/// What a user's turn asks for where the assistant's turn begins with the statement: instruction models
/// answer in sentences, whose first words would count as a wrong answer.
constexpr std::string_view kComplete = "\n\nComplete this sentence as the text has it:";

TaskTokens tokens_of_task(const Model& model, const Task& task, bool chat, bool begins) {
    if (begins) {
        const std::string text = task.prompt.substr(0, task.prompt.size() - task.question.size());
        std::vector<int> whole =
            prompt_tokens(model, fmt::format("{}{} {}", text, kComplete, stripped_of(task.question)), true);
        const std::string begun = stripped_of(task.question);
        const auto n_turn = std::ssize(whole);
        const std::vector<int> answer = model.tokenizer().encode(begun + task.answer, false);
        whole.insert(whole.end(), answer.begin(), answer.end());
        const std::vector<int> lead = model.tokenizer().encode(begun, false);
        return {std::move(whole),
                n_turn + (std::mismatch(lead.begin(), lead.end(), answer.begin(), answer.end()).first -
                          lead.begin())};
    }
    if (!chat) {
        std::vector<int> whole = model.tokenizer().encode(task.prompt + task.answer);
        const std::ptrdiff_t n = count_equal(model.tokenizer(), task.prompt, whole);
        return {std::move(whole), n};
    }
    std::vector<int> whole = prompt_tokens(model, task.prompt, true);
    const auto n = std::ssize(whole);
    const std::vector<int> answer = model.tokenizer().encode(task.answer.substr(1), false);
    whole.insert(whole.end(), answer.begin(), answer.end());
    return {std::move(whole), n};
}

/// Returns how many tokens a chat template writes around a turn.
int n_template_tokens(const Model& model) {
    return static_cast<int>(prompt_tokens(model, "a", true).size() -
                            model.tokenizer().encode("a", false).size());
}

std::string digest_of(std::string_view text) {
    return fmt::format("{:016x}", digest_bytes(kDigestSeed, std::as_bytes(std::span(text))));
}

/// Returns a value of `spans` with the parts of a question's prompt, by their names; empty: it has none.
std::string fair_spans_of(const Question& question) {
    std::map<int, std::string> names;  // by first token; of parts that begin together the first one names it
    for (const TextSpan& span : question.spans)
        if (span.place && span.place.first < std::ssize(question.prompt))
            names.emplace(span.place.first, span.name);
    if (names.empty()) return {};
    auto first_part = names.extract(names.begin());
    first_part.key() = 0;  // what the template writes before the first part belongs to it
    names.insert(std::move(first_part));
    while (names.size() > Spans::kMost) names.erase(std::prev(names.end()));
    std::vector<NamedSpan> spans;
    for (auto part = names.begin(); part != names.end(); ++part) {
        const auto next = std::next(part);
        spans.push_back({span_name(part->second, spans), part->first,
                         next == names.end() ? NamedSpan::kOpen : next->first - 1});
    }
    return fair_spans_text(spans);
}

}  // namespace

std::vector<LaneSpec> lanes_for(const Question& question, std::span<const LaneSpec> lanes) {
    std::vector<LaneSpec> own(lanes.begin(), lanes.end());
    const std::string spans = fair_spans_of(question);
    for (LaneSpec& lane : own)
        if (!spans.empty() && lane.policy.spans.text == kFairSpans) lane.policy.spans.text = spans;
    return own;
}

std::vector<Outcome> ask(const std::shared_ptr<const Model>& model, Backend& backend,
                         std::span<const LaneSpec> lanes, const Question& question, const TokenNats& each,
                         const ProgressReport& progress) {
    RunSpec spec;
    spec.lanes = lanes_for(question, lanes);
    if (question.answer) return question.answer(model, backend, spec.lanes);
    spec.prompt_tokens = question.prompt;
    spec.forced = question.asked;
    spec.forced.insert(spec.forced.end(), question.fed.begin(), question.fed.end());
    spec.n_generate = static_cast<int>(spec.forced.size());
    spec.ignore_eos = true;
    spec.n_top = 0;
    Session session(model, backend, spec);
    std::vector<Outcome> outcomes(lanes.size(),
                                  {0, static_cast<int>(question.fed.size()), question.n_bytes, true});
    const ProgressPart all(progress);
    const double n_rows = static_cast<double>(question.prompt.size() + spec.forced.size());
    const ProgressReport of_prompt =
        all.part(0, static_cast<double>(question.prompt.size()) / n_rows).callback();
    auto next_step = [&, row = static_cast<double>(question.prompt.size())]() mutable {
        all.report_or_cancel(row++ / n_rows);
        return session.step();
    };
    auto before = session.prefill(of_prompt);
    throw_if_failed(*before);
    GoneTokens gone;
    note_gone(*before, gone);
    const bool is_in_prompt = question.place.last < static_cast<int>(question.prompt.size());
    if (is_in_prompt) note_place(question, *model, *before, gone, question.prompt.size(), outcomes);
    for (std::size_t t = 0; t < question.asked.size(); ++t) {
        before = next_step();
        throw_if_failed(*before);
        if (!is_in_prompt) note_gone(*before, gone);
    }
    if (!is_in_prompt)
        note_place(question, *model, *before, gone, question.prompt.size() + question.asked.size(), outcomes);
    for (std::size_t t = 0; t < question.fed.size(); ++t) {
        const auto step = next_step();
        throw_if_failed(*step);
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            const LaneRecord& lane = step->lanes[i];
            outcomes[i].nats -= static_cast<double>(lane.log_prob);
            outcomes[i].right = outcomes[i].right && before->lanes[i].predicted == question.fed[t];
            const double kl = static_cast<double>(before->lanes[i].kl.value_or(std::nanf("")));
            outcomes[i].kl = t == 0 ? kl : outcomes[i].kl + kl;
            if (each) each(i, t, -static_cast<double>(lane.log_prob));
        }
        before = step;
    }
    return outcomes;
}

std::vector<std::unique_ptr<KvCache>> hold_models(const std::shared_ptr<const Model>& model, Backend& backend,
                                                  std::span<const LaneSpec> lanes) {
    std::vector<std::unique_ptr<KvCache>> held;
    for (const LaneSpec& lane : lanes)
        if (auto of = shared_model(model, lane.sharing); of != model)
            held.push_back(backend.make_cache({}, std::move(of)));
    return held;
}

QuestionSet text_windows(std::shared_ptr<const Model> model, std::string_view text, int context,
                         int n_prefill, int most) {
    const std::vector<int> begin = begin_of_text(model->tokenizer());
    const auto n_begin = static_cast<int>(begin.size());
    if (n_prefill < std::max(1, n_begin) || n_prefill >= context)
        fail(ErrorCode::wrong_use,
             "--prefill {} does not leave a row to score in --context {}; it takes {} to {}", n_prefill,
             context, std::max(1, n_begin), context - 1);
    const ModelConfig& config = model->config();
    const int longest = config.positions == PositionKind::learned ? context : n_prefill;
    if (longest > config.n_ctx)
        fail(ErrorCode::wrong_use, "--context {} with --prefill {} is beyond the model's context of {}",
             context, n_prefill, config.n_ctx);
    auto tokens = std::make_shared<const std::vector<int>>(model->tokenizer().encode(text, false));
    const int stride = context - n_begin, n_all = static_cast<int>(tokens->size()) / stride;
    if (n_all == 0)
        fail(ErrorCode::wrong_use,
             "the text has {} tokens, a window takes {}; give a longer text or a smaller --context",
             tokens->size(), stride);
    const int n = most > 0 ? std::min(most, n_all) : n_all;
    QuestionSet set;
    set.name = "text";
    set.n_questions = n;
    set.description = fmt::format(
        "{} of {} windows of {} tokens; each begins with {} as a prompt, {} rows after it are scored: {} in "
        "all",
        n, n_all, context, counted(n_prefill, "token"), context - n_prefill,
        std::int64_t{context - n_prefill} * n);
    set.identity = fmt::format("text {} context={} prefill={} windows={} model={}", digest_of(text), context,
                               n_prefill, n, model_identity(*model));
    set.make = [=](int i) {
        const auto window = static_cast<std::int64_t>(i) * n_all / n;
        const auto first = tokens->begin() + window * stride;
        Question question;
        question.prompt = begin;
        question.prompt.insert(question.prompt.end(), first, first + (n_prefill - n_begin));
        question.fed.assign(first + (n_prefill - n_begin), first + stride);
        question.n_bytes = static_cast<int>(model->tokenizer().decode(question.fed, true).size());
        return question;
    };
    return set;
}

TaskTexts::TaskTexts(const std::filesystem::path& words_json, std::string_view narrative,
                     std::string_view passage_text, AskBy ask_by)
    : words(words_json, TaskSplit::test, ask_by),
      sentences(split_sentences(narrative)),
      passages(split_passages(passage_text, words.longest_answer())),
      vocabulary(vocabulary_of(sentences)),
      digest(digest_of(read_text_file(words_json) + std::string(narrative) + std::string(passage_text))) {}

QuestionSet task_questions(std::shared_ptr<const Model> model, std::shared_ptr<const TaskTexts> texts,
                           TaskKind kind, const TaskOptions& options) {
    if (options.context > model->config().n_ctx)
        fail(ErrorCode::wrong_use, "--context {} is beyond the model's context of {}", options.context,
             model->config().n_ctx);
    DistanceRange distance = options.distance;
    if (distance.high == 0) distance.high = options.context;
    QuestionSet set;
    set.name = task_name(kind);
    set.is_task = true;
    set.n_questions = options.n_questions;
    set.description =
        fmt::format("{} (seed {}): {}; context {} tokens", counted(options.n_questions, "question"),
                    options.seed, task_help(kind), options.context);
    if (has_distance(kind))
        set.description += distance.low == distance.high
                               ? fmt::format(", asked {} tokens later", distance.low)
                               : fmt::format(", asked {} to {} tokens later", distance.low, distance.high);
    set.identity =
        fmt::format("{} seed={} context={} distance={}..{} texts={} model={}", set.name, options.seed,
                    options.context, distance.low, distance.high, texts->digest, model_identity(*model));
    if ((has_distance(kind) || kind == TaskKind::instructions) && texts->words.ask_by() == AskBy::statement) {
        set.description += ", by its statement";
        set.identity += " ask=statement";
    }
    if (options.ask_when == AskWhen::after) {
        set.name += "-after";
        set.description += "; asked after the eviction";
        set.identity += " when=after";
    }
    if (options.ask_when == AskWhen::decoding) {
        set.name += "-decoding";
        set.description += "; read token by token";
        set.identity += " when=decoding";
    }
    const bool is_passage = kind == TaskKind::passage || kind == TaskKind::ruler_passage_1 ||
                            kind == TaskKind::ruler_passage_2;  // whose questions are no sentences
    const bool begins = options.chat && texts->words.ask_by() == AskBy::statement && !is_passage;
    if (options.chat) {
        set.description += begins ? "; as a turn of a chat whose answer has begun" : "; as a turn of a chat";
        set.identity += begins ? " chat begun" : " chat";
    }
    const int context = options.context - (options.chat ? n_template_tokens(*model) - 1 : 0);
    if (context < 2)
        fail(ErrorCode::wrong_use, "--context {} has no room beside the chat template", options.context);
    set.make = [=, count = std::make_shared<TokenCounter>(model)](int i) {
        const TaskMaterial material{&texts->words, &texts->sentences, &texts->passages,
                                    [&](const std::string& text) { return (*count)(text); },
                                    &texts->vocabulary};
        const auto make = [&](int room) {
            return make_task(kind, options.seed, static_cast<std::uint32_t>(i), room, distance, material);
        };
        Task task = make(context);
        TaskTokens tokens = tokens_of_task(*model, task, options.chat, begins);
        // The question stands twice where the answer has begun.
        for (int room = context; begins && static_cast<int>(tokens.whole.size()) > options.context;) {
            room -= static_cast<int>(tokens.whole.size()) - options.context;
            task = make(room);
            tokens = tokens_of_task(*model, task, options.chat, begins);
        }
        const auto& [whole, n_prompt] = tokens;
        const std::string text = task.prompt.substr(0, task.prompt.size() - task.question.size());
        const auto n_text = [&, &all = whole] {
            if (!options.chat) return count_equal(model->tokenizer(), text, all);
            const std::vector<int> own = prompt_tokens(*model, text, true);
            return std::mismatch(own.begin(), own.end(), all.begin(), all.end()).first - own.begin();
        };
        const auto answer = whole.begin() + n_prompt, asked = options.ask_when == AskWhen::before ? answer
                                                              : options.ask_when == AskWhen::after
                                                                  ? whole.begin() + n_text()
                                                                  : whole.begin() + 1;
        Question question;
        question.prompt.assign(whole.begin(), asked);
        question.asked.assign(asked, answer);
        question.fed.assign(answer, whole.end());
        question.n_bytes = static_cast<int>(task.answer.size());
        question.distance = task.distance;
        question.place =
            find_answer(model->tokenizer(), std::vector<int>(whole.begin(), std::max(asked, answer)),
                        task.stated, task.answer.substr(1));
        std::vector<TextPiece> pieces = {{"text", text}, {"question", task.question}};
        for (const auto& [name, words] : task.parts) pieces.push_back({name, words, true});
        question.asks_for = task.asks_for;
        question.spans = find_spans(model->tokenizer(), {whole.begin(), answer}, pieces);
        if (question.place) question.spans.push_back({"answer", question.place});
        return question;
    };
    return set;
}

namespace {

/// Returns the mean of scores from 0 to 1, or of their differences. Student's interval says nothing where all
/// are equal: then it is that of shares.
Estimate mean_score(std::span<const double> values, bool are_differences) {
    const Estimate mean = mean_estimate(values);
    if (mean.interval.high > mean.interval.low)
        return {
            mean.value,
            {std::max(mean.interval.low, are_differences ? -1.0 : 0.0), std::min(mean.interval.high, 1.0)}};
    return are_differences ? mean_of_differences(values) : mean_of_shares(values);
}

LaneScore::Measure score_measure(std::span<const Outcome> outcomes, std::span<const Outcome> reference,
                                 std::size_t m, bool is_share) {
    std::vector<double> values, differences;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        const double mine = outcomes[i].measures.at(m);
        values.push_back(mine);
        differences.push_back(mine - reference[i].measures.at(m));
    }
    if (is_share) return {mean_of_shares(values), mean_of_differences(differences)};
    return {mean_score(values, false), mean_score(differences, true)};
}

}  // namespace

LaneScore score_lane(std::span<const Outcome> outcomes, std::span<const Outcome> reference) {
    KH_ASSERT(outcomes.size() == reference.size() && !outcomes.empty());
    LaneScore score;
    score.n_questions = static_cast<int>(outcomes.size());
    int n_right = 0, only_this = 0, only_reference = 0;
    double nats = 0;
    std::int64_t n_bytes = 0;
    std::vector<double> means, differences, held;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        const Outcome &mine = outcomes[i], &other = reference[i];
        if (std::isfinite(mine.held)) held.push_back(mine.held);
        n_right += mine.right ? 1 : 0;
        only_this += mine.right && !other.right ? 1 : 0;
        only_reference += !mine.right && other.right ? 1 : 0;
        nats += mine.nats;
        score.n_tokens += mine.n_tokens;
        n_bytes += mine.n_bytes;
        means.push_back(mine.nats / mine.n_tokens);
        differences.push_back((mine.nats - other.nats) / mine.n_tokens);
    }
    score.accuracy = {static_cast<double>(n_right) / score.n_questions,
                      wilson_interval(n_right, score.n_questions)};
    score.accuracy_difference = paired_difference(only_reference, only_this, score.n_questions);
    score.nats = mean_estimate(means);
    score.nats.interval.low = std::max(score.nats.interval.low, 0.0);  // keeps NaN
    if (!held.empty()) score.held = mean_estimate(held).value;
    score.nats_difference = mean_estimate(differences);
    score.perplexity = std::exp(nats / static_cast<double>(score.n_tokens));
    score.bits_per_byte = n_bytes > 0 ? nats / std::log(2.0) / static_cast<double>(n_bytes) : std::nan("");
    return score;
}

LaneScore score_lane(const QuestionSet& set, std::span<const Outcome> outcomes,
                     std::span<const Outcome> reference) {
    LaneScore score = score_lane(outcomes, reference);
    for (std::size_t m = 0; m < set.measures.size(); ++m)
        score.measures.push_back(score_measure(outcomes, reference, m, set.measures[m].is_share));
    return score;
}

namespace {

/// Tokens of a head, as KvBytes has bytes of all.
struct StoredTokens {
    int after = 0, most = 0;
};

StoredTokens stored_tokens(const ResolvedPolicy& policy, int n_tokens) {
    StoredTokens n;
    for (int row = 0; row < n_tokens; ++row) {
        n.most = std::max(n.most, ++n.after);
        if (policy.keeps_memory || !policy.evicts_after(row) || !policy.exceeded(n.after, row)) continue;
        n.after = std::min(n.after, policy.stored);
    }
    return n;
}

}  // namespace

KvBytes kv_bytes_of(const Model& model, const Backend& backend, const LaneSpec& lane, int n_prompt,
                    int n_tokens) {
    const KvLayout layout = layouts_of(model, {lane}).front();
    const ResolvedPolicy policy = resolve(lane.policy, n_prompt, 1, head_grid(layout));
    std::unordered_map<const ResolvedPolicy*, StoredTokens> known;  // many heads have one policy
    KvBytes bytes;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const HeadRef& reader = layout.kv_head(g).readers.front();
        const ResolvedPolicy& of_head = policy.at(reader.layer, reader.head);
        auto [found, is_new] = known.try_emplace(&of_head);
        if (is_new) found->second = stored_tokens(of_head, n_tokens);
        const KvType type = backend.kv_type(of_head.kv_dtype);
        const double of_token = 2.0 * static_cast<double>(kv_row_bytes(type, model.config().head_dim));
        bytes.after += of_token * found->second.after;
        bytes.most += of_token * found->second.most;
    }
    return bytes;
}

bool may_evict(const Model& model, const LaneSpec& lane, int n_prompt, int n_tokens) {
    const KvLayout layout = layouts_of(model, {lane}).front();
    const ResolvedPolicy policy = resolve(lane.policy, n_prompt, 1, head_grid(layout));
    return policy.any([&](const ResolvedPolicy& one) {
        for (int row = 0; row < n_tokens; ++row)
            if (one.evicts_after(row) && one.exceeded(row + 1, row)) return true;
        return false;
    });
}

std::size_t lanes_that_fit(const Model& model, std::span<const LaneSpec> lanes, int context, double bytes) {
    constexpr std::size_t kMost = 256;
    double sum = 0;
    std::size_t n = 0;
    for (; n < std::min(lanes.size(), kMost); ++n) {
        ModelConfig config = model.config();
        const KvShape shape = kv_shape(lanes[n].sharing, config);
        config.n_kv_layers = shape.n_layers;
        config.n_kv_heads = shape.n_heads;
        const auto bytes_of = [&](KvType type, int n_tokens) {
            return static_cast<double>(kv_bytes_per_token(config, kv_type_for(type, model)) * n_tokens);
        };
        const ResolvedPolicy policy =
            resolve(lanes[n].policy, context, 1, head_grid(layout_of(model.config(), lanes[n].sharing)));
        const auto stored = [&](const ResolvedPolicy& p) {
            return p.grows() ? context : std::min(context, p.most_stored());
        };
        int most = stored(policy);
        for (const ResolvedPolicy& variant : policy.variants) most = std::max(most, stored(variant));
        sum += bytes_of(policy.kv_dtype, most) + bytes_of(KvType::f32, policy.shadow ? context : 0);
        if (sum > bytes) break;
    }
    return std::max<std::size_t>(n, 1);
}

}  // namespace keyhole
