/// Lanes that have processed one prompt, and what they say after it: the likelihood of given continuations,
/// and texts of their own by greedy decoding, sampling or beam search. Nothing is recorded. Used by one
/// thread, that of a command; knows no Session.
#pragma once

#include "engine/session/lane_runner.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// How the beams of a lane decide what their caches keep.
///     apart   each beam has a cache and scores of its own; a beam that continues another one copies them.
///             Keyformer's algorithm 1, for each sequence.
///     shared  the scores of all beams are summed, and one kept set serves all. A sum stays when the beams
///             that gave to it end. What Keyformer's released code does.
enum class BeamScores { apart, shared };

/// Beam search as transformers has it for a decoder.
struct BeamSettings {
    int n_beams = 1;            ///< 1: no beam search
    double length_penalty = 1;  ///< a text of n tokens scores its log probability / n^length_penalty
    BeamScores scores = BeamScores::apart;
    /// Ends the search with the n-th finished text. Otherwise it goes on while a beam may become better.
    bool early_stopping = false;
    bool operator==(const BeamSettings&) const = default;
};
inline constexpr int kMostBeams = 64;
/// Returns "4 beams with scores apart, early stopping".
std::string beams_text(const BeamSettings& settings);

/// A text that a lane wrote after the prompt.
struct OwnText {
    std::vector<int> tokens;  ///< without the end of text
    std::string text;         ///< up to the stop text: see text_until()
    double nats = 0;          ///< sum over `tokens` of -ln p, by the lane's own distribution
    double score = 0;         ///< beam search: sum of log probabilities after the rules / n^length_penalty
    bool complete = false;    ///< it ended before the last token that was allowed
};

/// Returns the text of tokens, cut at the first of the stop texts that follows something other than white
/// space, since a model may begin its answer on a new line. complete: there is such a stop text.
OwnText text_until(const Tokenizer& tokenizer, std::span<const int> tokens,
                   std::span<const std::string> stop);

class PromptedLanes {
  public:
    /// Processes the prompt with spec.lanes. spec.n_generate: most tokens of a text, and the horizon of tau.
    /// spec.sampling, seed and ignore_eos apply to texts; commands, forced tokens and `follow` do not.
    /// Throws the session's Error.
    PromptedLanes(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec,
                  const ProgressReport& progress = {});

    /// Feeds tokens to all lanes after the prompt, one a row, as a question that comes when the text has been
    /// evicted. What follows continues after them. Call it once at most.
    void ask(std::span<const int> tokens);

    /// Returns for each lane the sum of -ln p over the tokens, fed one a row after the prompt. Throws
    /// Error(wrong_use) for a token that the model does not have.
    std::vector<double> nats_of(std::span<const int> tokens) const;

    /// Returns the text of each lane. It ends with the model's end of text, with a stop text (text_until()),
    /// or after spec.n_generate tokens. More than one beam: the best of the finished texts; greedy only.
    /// Throws Error(wrong_use) if the settings do not fit a lane, and Error(cancelled).
    std::vector<OwnText> texts(const BeamSettings& beams, std::span<const std::string> stop,
                               const ProgressReport& progress = {}) const;

    const RunContext& context() const { return context_; }

  private:
    const RunContext context_;
    const LaneRunner runner_;
    std::vector<Lane> lanes_;
    int n_asked_ = 0;
    int next_row() const { return context_.n_prompt() + n_asked_; }

    std::vector<OwnText> greedy(std::span<const std::string> stop, const ProgressReport& progress) const;
};

}  // namespace keyhole
