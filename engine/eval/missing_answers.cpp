#include "engine/eval/missing_answers.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

std::vector<LaneSpec> lanes_without_answer(const std::string& asked, std::span<const LaneSpec> lanes,
                                           int question, const AnswerFile& answers, bool with_kl) {
    std::vector<LaneSpec> missing;
    for (const LaneSpec& lane : lanes) {
        const std::optional<Outcome> known = answers.find(asked, answer_lane(lane), question);
        if (!known || (with_kl && std::isnan(known->kl))) missing.push_back(lane);
    }
    return missing;
}

}  // namespace

LanesOf same_lanes(std::span<const LaneSpec> lanes) {
    return [all = std::vector<LaneSpec>(lanes.begin(), lanes.end())](int) { return all; };
}

void answer_missing(const Model& model, TwoAtATime& side_by_side, const QuestionSet& set,
                    const std::string& asked, const LanesOf& lanes_of, int context, AnswerFile& answers,
                    const std::function<void(int n_answers)>& each, const Shard& shard, bool with_kl) {
    const std::vector<LaneSpec> of_first = lanes_of(0);
    for (std::size_t begin = 0; begin < of_first.size();) {
        const double bytes = TwoAtATime::kBytes / side_by_side.n_at_a_time() / set.n_caches;
        const auto some = std::span(of_first).subspan(begin);
        const std::size_t n = lanes_that_fit(model, some, context, bytes);
        std::vector<Asked> questions;
        for (int i = 0; i < set.n_questions; ++i) {
            if (!shard.has(i)) continue;
            const std::vector<LaneSpec> lanes = lanes_of(i);
            Asked one{i,
                      lanes_without_answer(asked, std::span(lanes).subspan(begin, n), i, answers, with_kl)};
            if (one.lanes.empty()) continue;
            // KL refers to the first lane.
            if (with_kl && one.lanes.front() != lanes.front())
                one.lanes.insert(one.lanes.begin(), lanes.front());
            questions.push_back(std::move(one));
        }
        begin += n;
        if (questions.empty()) continue;
        side_by_side.hold(some.first(n));
        side_by_side.ask(set, questions, [&](const Asked& one, const std::vector<Outcome>& found) {
            int n_new = 0;
            for (std::size_t lane = 0; lane < one.lanes.size(); ++lane) {
                Outcome outcome = found[lane];
                if (!with_kl) outcome.kl = std::nan("");
                const std::string spec = answer_lane(one.lanes[lane]);
                const std::optional<Outcome> known = answers.find(asked, spec, one.question);
                if (known && (!with_kl || !std::isnan(known->kl))) continue;
                answers.add(asked, spec, one.question, outcome);
                ++n_new;
            }
            answers.flush();
            each(n_new);
        });
    }
}

std::vector<std::vector<Outcome>> known_answers(const QuestionSet& set, const std::string& asked,
                                                const LanesOf& lanes_of, const AnswerFile& answers) {
    std::vector<std::vector<Outcome>> outcomes(lanes_of(0).size());
    for (int i = 0; i < set.n_questions; ++i) {
        const std::vector<LaneSpec> lanes = lanes_of(i);
        for (std::size_t lane = 0; lane < lanes.size(); ++lane)
            outcomes[lane].push_back(answers.find(asked, answer_lane(lanes[lane]), i).value());
    }
    return outcomes;
}

int count_missing(const QuestionSet& set, const std::string& asked, const LanesOf& lanes_of,
                  const AnswerFile& answers, const Shard& shard, bool with_kl) {
    int n = 0;
    for (int i = 0; i < set.n_questions; ++i)
        if (shard.has(i))
            n += static_cast<int>(lanes_without_answer(asked, lanes_of(i), i, answers, with_kl).size());
    return n;
}

int count_questions(const QuestionSet& set, const Shard& shard) {
    int n = 0;
    for (int i = 0; i < set.n_questions; ++i) n += shard.has(i) ? 1 : 0;
    return n;
}

}  // namespace keyhole
