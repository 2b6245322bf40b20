#include "engine/eval/prompted_lanes.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/utf8.h"
#include "engine/eval/beam_search.h"
#include "engine/session/lane_fault.h"

#include <algorithm>
#include <utility>

namespace keyhole {

std::string beams_text(const BeamSettings& settings) {
    return fmt::format("{} beams with scores {}{}", settings.n_beams,
                       settings.scores == BeamScores::shared ? "shared" : "apart",
                       settings.early_stopping ? ", early stopping" : "");
}

OwnText text_until(const Tokenizer& tokenizer, std::span<const int> tokens,
                   std::span<const std::string> stop) {
    OwnText own;
    own.tokens.assign(tokens.begin(), tokens.end());
    own.text = tokenizer.decode(own.tokens);
    std::size_t cut = std::string::npos;
    for (const std::string& text : stop) cut = std::min(cut, own.text.find(text, space_at_front(own.text)));
    own.complete = cut != std::string::npos;
    if (own.complete) own.text.resize(cut);
    return own;
}

PromptedLanes::PromptedLanes(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec,
                             const ProgressReport& progress)
    : context_(std::move(model), backend, std::move(spec), nullptr),
      runner_(context_, context_.start.requested) {
    lanes_ = runner_.first_state().lanes;
    runner_.prefill(lanes_, context_.start.sampling, ProgressPart(progress), false);
    for (const Lane& lane : lanes_) throw_if_failed(lane);
}

void PromptedLanes::ask(std::span<const int> tokens) {
    const LaneRunner runner = runner_.without_values();
    for (const int token : tokens) {
        std::vector<Lane*> fed;
        for (Lane& lane : lanes_) {
            lane.token = token;
            fed.push_back(&lane);
        }
        runner.feed(fed, next_row());
        for (Lane& lane : lanes_) {
            lane.tokens.push_back(token);
            runner.read_row(lane, Sampling{}, next_row());
            throw_if_failed(lane);
        }
        ++n_asked_;
    }
}

std::vector<double> PromptedLanes::nats_of(std::span<const int> tokens) const {
    std::vector<Lane> copies;
    for (const Lane& lane : lanes_) copies.push_back(lane.copy());
    std::vector<double> nats(lanes_.size(), 0);
    const LaneRunner runner = runner_.without_values();
    for (std::size_t t = 0; t < tokens.size(); ++t) {
        const int token = tokens[t];
        if (token < 0 || token >= context_.run->config.n_vocab)
            fail(ErrorCode::wrong_use, "there is no token {}; the model has 0 to {}", token,
                 context_.run->config.n_vocab - 1);
        for (std::size_t i = 0; i < copies.size(); ++i)
            nats[i] -= static_cast<double>(copies[i].log_probs[to_index(token)]);
        if (t + 1 == tokens.size()) break;  // nothing asks for the distribution after the last token
        std::vector<Lane*> fed;
        for (Lane& copy : copies) {
            copy.token = token;
            fed.push_back(&copy);
        }
        const int row = next_row() + static_cast<int>(t);
        runner.feed(fed, row);
        for (Lane& copy : copies) {
            copy.tokens.push_back(token);
            runner.read_row(copy, Sampling{}, row);
            throw_if_failed(copy);
        }
    }
    return nats;
}

std::vector<OwnText> PromptedLanes::texts(const BeamSettings& beams, std::span<const std::string> stop,
                                          const ProgressReport& progress) const {
    const int most = context_.start.n_generate;
    if (most < 1) fail(ErrorCode::wrong_use, "a text of {} tokens cannot be written; take at least 1", most);
    if (beams.n_beams == 1) return greedy(stop, progress);
    KH_ASSERT(n_asked_ == 0);  // beams count their rows from the prompt
    BeamSearch search(runner_, lanes_, beams, stop);
    for (int n = 0; search.step(); ++n)
        ProgressPart(progress).report_or_cancel(static_cast<double>(n) / most);
    return search.best();
}

std::vector<OwnText> PromptedLanes::greedy(std::span<const std::string> stop,
                                           const ProgressReport& progress) const {
    const std::vector<int>& eos = context_.run->config.eos;
    const int most = context_.start.n_generate;
    std::vector<OwnText> found(lanes_.size());
    std::vector<Lane> copies;
    for (const Lane& lane : lanes_) copies.push_back(lane.copy());
    const LaneRunner runner = runner_.without_values();
    for (int n = 0; n < most; ++n) {
        ProgressPart(progress).report_or_cancel(static_cast<double>(n) / most);
        std::vector<Lane*> fed;
        for (std::size_t i = 0; i < copies.size(); ++i) {
            Lane& lane = copies[i];
            if (found[i].complete) continue;
            lane.token = lane.predicted;
            if (!context_.start.ignore_eos && std::find(eos.begin(), eos.end(), lane.token) != eos.end()) {
                found[i].complete = true;
                continue;
            }
            found[i].nats -= static_cast<double>(lane.log_probs[to_index(lane.token)]);
            lane.tokens.push_back(lane.token);
            OwnText own = text_until(context_.model->tokenizer(),
                                     std::span(lane.tokens).subspan(to_index(n_asked_)), stop);
            found[i].text = std::move(own.text);
            found[i].complete = own.complete;
            if (!own.complete) fed.push_back(&lane);
        }
        if (fed.empty() || n + 1 == most) break;
        const int row = next_row() + n;
        runner.feed(fed, row);
        for (Lane* lane : fed) {
            runner.read_row(*lane, context_.start.sampling, row);
            throw_if_failed(*lane);
        }
    }
    for (std::size_t i = 0; i < copies.size(); ++i)
        found[i].tokens.assign(copies[i].tokens.begin() + n_asked_, copies[i].tokens.end());
    return found;
}

}  // namespace keyhole
