#include "engine/eval/beam_search.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/session/lane_fault.h"
#include "engine/session/token_rules.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

BeamSearch::BeamSearch(const LaneRunner& runner, std::span<const Lane> lanes, const BeamSettings& settings,
                       std::span<const std::string> stop)
    : runner_(runner), settings_(settings), stop_(stop) {
    const RunSpec& start = runner.context().start;
    if (settings.n_beams < 2 || settings.n_beams > kMostBeams)
        fail(ErrorCode::wrong_use, "{} beams cannot be searched; take 2 to {}", settings.n_beams, kMostBeams);
    if (start.sampling.temperature > 0)
        fail(ErrorCode::wrong_use,
             "beam search takes the most likely tokens; it cannot sample with temperature {}; leave out one "
             "of the two",
             start.sampling.temperature);
    for (const Lane& lane : lanes) {
        Search& search = searches_.emplace_back();
        Beam& first = search.beams.emplace_back(Beam{lane.copy(), 0, 0, {}});
        if (settings.scores != BeamScores::shared ||
            !lane.policy().any([](const ResolvedPolicy& policy) { return policy.evicts(); }))
            continue;
        search.shared.emplace(runner.context().backend, lane, settings.n_beams, start.n_generate);
        first.own = search.shared->begin(*first.lane.cache, runner.context().n_prompt() - 1);
    }
}

bool BeamSearch::step() {
    bool all_done = true;
    for (Search& search : searches_) {
        if (!search.done) choose(search);
        all_done = all_done && search.done;
    }
    ++n_tokens_;
    if (all_done) return false;
    feed();
    return true;
}

/// Returns the best continuations of all beams, best first: enough of them that some go on where all others
/// end.
std::vector<BeamSearch::Candidate> BeamSearch::candidates(const Search& search) const {
    const RunContext& context = runner_.context();
    const std::size_t n_eos = context.start.ignore_eos ? 0 : context.run->config.eos.size();
    const std::size_t n_kept = std::max<std::size_t>(2, 1 + n_eos) * to_index(settings_.n_beams);
    std::vector<Candidate> all;
    for (std::size_t b = 0; b < search.beams.size(); ++b) {
        const Beam& beam = search.beams[b];
        std::vector<float> score = beam.lane.log_probs;
        if (has_rules(context.start.sampling))
            apply_rules(context.start.sampling, runner_.text_of(beam.lane), context.n_prompt(),
                        context.run->config.eos, score);
        for (std::size_t token = 0; token < score.size(); ++token)
            all.push_back({b, static_cast<int>(token), beam.score + score[token], false});
    }
    const auto better = [](const Candidate& a, const Candidate& b) {
        return a.score != b.score ? a.score > b.score
                                  : std::pair(a.beam, a.token) < std::pair(b.beam, b.token);
    };
    std::erase_if(all, [](const Candidate& c) { return !(c.score > -HUGE_VALF); });
    const std::size_t n = std::min(n_kept, all.size());
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n), all.end(), better);
    all.resize(n);
    for (Candidate& candidate : all) candidate.ends = ends(search.beams[candidate.beam], candidate.token);
    return all;
}

bool BeamSearch::ends(const Beam& beam, int token) const {
    const RunContext& context = runner_.context();
    const std::vector<int>& eos = context.run->config.eos;
    if (!context.start.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end()) return true;
    if (n_tokens_ + 1 >= context.start.n_generate) return true;
    if (stop_.empty()) return false;
    std::vector<int> tokens = beam.lane.tokens;
    tokens.push_back(token);
    return text_until(context.model->tokenizer(), tokens, stop_).complete;
}

void BeamSearch::finish(Search& search, const Candidate& candidate) const {
    const RunContext& context = runner_.context();
    const Beam& beam = search.beams[candidate.beam];
    OwnText text;
    text.tokens = beam.lane.tokens;
    text.nats = beam.nats;
    text.score = static_cast<double>(candidate.score) / std::pow(n_tokens_ + 1, settings_.length_penalty);
    const std::vector<int>& eos = context.run->config.eos;
    const bool is_end =
        !context.start.ignore_eos && std::find(eos.begin(), eos.end(), candidate.token) != eos.end();
    if (!is_end) {
        text.tokens.push_back(candidate.token);
        text.nats -= static_cast<double>(beam.lane.log_probs[to_index(candidate.token)]);
    }
    OwnText cut = text_until(context.model->tokenizer(), text.tokens, stop_);
    text.text = std::move(cut.text);
    text.complete = is_end || cut.complete;
    const auto worse = std::find_if(search.finished.begin(), search.finished.end(),
                                    [&](const OwnText& known) { return known.score < text.score; });
    search.finished.insert(worse, std::move(text));
    if (search.finished.size() > to_index(settings_.n_beams)) search.finished.pop_back();
}

/// Replaces the beams by the best continuations that do not end.
void BeamSearch::go_on(Search& search, const std::vector<Candidate>& found) const {
    std::vector<Candidate> next;
    for (const Candidate& candidate : found)
        if (!candidate.ends && next.size() < to_index(settings_.n_beams)) next.push_back(candidate);
    std::vector<Beam> beams;
    for (std::size_t i = 0; i < next.size(); ++i) {
        const Candidate& candidate = next[i];
        Beam& parent = search.beams[candidate.beam];
        const double nats =
            parent.nats - static_cast<double>(parent.lane.log_probs[to_index(candidate.token)]);
        const bool comes_again = std::any_of(next.begin() + static_cast<std::ptrdiff_t>(i) + 1, next.end(),
                                             [&](const Candidate& c) { return c.beam == candidate.beam; });
        // The last one that continues a beam takes its cache; the others copy it.
        Beam beam = comes_again ? Beam{parent.lane.copy(), 0, 0, parent.own}
                                : Beam{std::move(parent.lane), 0, 0, std::move(parent.own)};
        beam.score = candidate.score;
        beam.nats = nats;
        beam.lane.token = candidate.token;
        beam.lane.tokens.push_back(candidate.token);
        beams.push_back(std::move(beam));
    }
    search.beams = std::move(beams);
}

void BeamSearch::choose(Search& search) const {
    const std::vector<Candidate> found = candidates(search);
    if (found.empty() && search.finished.empty()) {  // the rules forbid every token
        const Beam& best = search.beams.front();
        search.finished.push_back(text_until(runner_.context().model->tokenizer(), best.lane.tokens, stop_));
        search.finished.front().nats = best.nats;
    }
    bool goes_on = false;
    for (std::size_t i = 0; i < found.size(); ++i) {
        goes_on = goes_on || !found[i].ends;
        // Those behind the first n_beams are there only to go on.
        if (found[i].ends && i < to_index(settings_.n_beams)) finish(search, found[i]);
    }
    go_on(search, found);
    const bool is_full = search.finished.size() == to_index(settings_.n_beams);
    const double n_now = std::pow(n_tokens_ + 1, settings_.length_penalty);
    // Scores per token fall, so a beam that is worse than all finished texts now stays worse (a heuristic).
    const bool may_improve =
        !is_full || (!settings_.early_stopping && !search.beams.empty() &&
                     static_cast<double>(search.beams.front().score) / n_now > search.finished.back().score);
    search.done = !goes_on || search.beams.empty() || !may_improve;
}

void BeamSearch::feed() {
    const RunContext& context = runner_.context();
    const int row = context.n_prompt() + n_tokens_ - 1;
    std::vector<Lane*> fed;
    for (Search& search : searches_)
        if (!search.done)
            for (Beam& beam : search.beams) fed.push_back(&beam.lane);
    runner_.feed(fed, row);
    for (Search& search : searches_) {
        if (search.done) continue;
        if (search.shared) {
            std::vector<SharedScores::Of> of;
            for (Beam& beam : search.beams)
                of.push_back({beam.lane.cache.get(), &beam.lane.out.values, &beam.own});
            search.shared->evict(of, row);
        }
        for (Beam& beam : search.beams) {
            runner_.read_row(beam.lane, Sampling{}, row);
            throw_if_failed(beam.lane);
        }
    }
}

std::vector<OwnText> BeamSearch::best() const {
    std::vector<OwnText> texts;
    for (const Search& search : searches_)
        texts.push_back(search.finished.empty() ? OwnText{} : search.finished.front());
    return texts;
}

}  // namespace keyhole
