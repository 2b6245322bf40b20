#include "engine/eval/missing_answers.h"

namespace keyhole {

namespace {

std::vector<LaneSpec> lanes_without_answer(const std::string& asked, std::span<const LaneSpec> lanes,
                                           int question, const AnswerFile& answers) {
    std::vector<LaneSpec> missing;
    for (const LaneSpec& lane : lanes)
        if (!answers.find(asked, format_lane_spec(lane), question)) missing.push_back(lane);
    return missing;
}

}  // namespace

LanesOf same_lanes(std::span<const LaneSpec> lanes) {
    return [all = std::vector<LaneSpec>(lanes.begin(), lanes.end())](int) { return all; };
}

void answer_missing(const Model& model, TwoAtATime& side_by_side, const QuestionSet& set,
                    const std::string& asked, const LanesOf& lanes_of, int context, AnswerFile& answers,
                    const std::function<void(int n_answers)>& each, const Shard& shard) {
    const std::vector<LaneSpec> of_first = lanes_of(0);
    for (std::size_t begin = 0; begin < of_first.size();) {
        const double bytes = TwoAtATime::kBytes / side_by_side.n_at_a_time() / set.n_caches;
        const auto some = std::span(of_first).subspan(begin);
        const std::size_t n = lanes_that_fit(model, some, context, bytes);
        std::vector<Asked> questions;
        for (int i = 0; i < set.n_questions; ++i) {
            if (!shard.has(i)) continue;
            const std::vector<LaneSpec> lanes = lanes_of(i);
            if (Asked one{i, lanes_without_answer(asked, std::span(lanes).subspan(begin, n), i, answers)};
                !one.lanes.empty())
                questions.push_back(std::move(one));
        }
        begin += n;
        if (questions.empty()) continue;
        side_by_side.hold(some.first(n));
        side_by_side.ask(set, questions, [&](const Asked& one, const std::vector<Outcome>& found) {
            for (std::size_t lane = 0; lane < one.lanes.size(); ++lane)
                answers.add(asked, format_lane_spec(one.lanes[lane]), one.question, found[lane]);
            answers.flush();
            each(static_cast<int>(one.lanes.size()));
        });
    }
}

std::vector<std::vector<Outcome>> known_answers(const QuestionSet& set, const std::string& asked,
                                                const LanesOf& lanes_of, const AnswerFile& answers) {
    std::vector<std::vector<Outcome>> outcomes(lanes_of(0).size());
    for (int i = 0; i < set.n_questions; ++i) {
        const std::vector<LaneSpec> lanes = lanes_of(i);
        for (std::size_t lane = 0; lane < lanes.size(); ++lane)
            outcomes[lane].push_back(answers.find(asked, format_lane_spec(lanes[lane]), i).value());
    }
    return outcomes;
}

int count_missing(const QuestionSet& set, const std::string& asked, const LanesOf& lanes_of,
                  const AnswerFile& answers, const Shard& shard) {
    int n = 0;
    for (int i = 0; i < set.n_questions; ++i)
        if (shard.has(i)) n += static_cast<int>(lanes_without_answer(asked, lanes_of(i), i, answers).size());
    return n;
}

int count_questions(const QuestionSet& set, const Shard& shard) {
    int n = 0;
    for (int i = 0; i < set.n_questions; ++i) n += shard.has(i) ? 1 : 0;
    return n;
}

}  // namespace keyhole
