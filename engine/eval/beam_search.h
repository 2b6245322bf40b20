/// Beam search over lanes that have processed one prompt, in lockstep: a step feeds one token to every beam
/// of every lane. Used on the thread of PromptedLanes, by it only.
#pragma once

#include "engine/eval/prompted_lanes.h"
#include "engine/eval/shared_scores.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

class BeamSearch {
  public:
    /// lanes: right after the prompt; with shared scores their rows hold scores (RowRequest). Throws
    /// Error(wrong_use) if the settings do not fit a lane. runner, lanes and stop must outlive the search.
    BeamSearch(const LaneRunner& runner, std::span<const Lane> lanes, const BeamSettings& settings,
               std::span<const std::string> stop);

    /// Chooses the next token of every beam and feeds it. Returns false once every lane is done.
    bool step();
    /// Returns the best finished text of each lane.
    std::vector<OwnText> best() const;

  private:
    struct Beam {
        Lane lane;        ///< after the newest of its tokens
        float score = 0;  ///< sum of log probabilities after the rules
        double nats = 0;
        KvScores own;  ///< shared scores: what the beam's cache has accumulated
    };
    /// A token that continues a beam.
    struct Candidate {
        std::size_t beam = 0;
        int token = 0;
        float score = 0;
        bool ends = false;
    };
    /// The beams of one lane, best first, and its finished texts, best first.
    struct Search {
        std::vector<Beam> beams;
        std::vector<OwnText> finished;
        std::optional<SharedScores> shared;
        bool done = false;
    };

    const LaneRunner& runner_;
    const BeamSettings settings_;
    const std::span<const std::string> stop_;
    std::vector<Search> searches_;
    int n_tokens_ = 0;  ///< of every beam, after the prompt

    std::vector<Candidate> candidates(const Search& search) const;
    bool ends(const Beam& beam, int token) const;
    void finish(Search& search, const Candidate& candidate) const;
    void go_on(Search& search, const std::vector<Candidate>& found) const;
    void choose(Search& search) const;
    void feed();
};

}  // namespace keyhole
