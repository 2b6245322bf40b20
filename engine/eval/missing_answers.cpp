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

void answer_missing(const Model& model, TwoAtATime& side_by_side, const QuestionSet& set,
                    const std::string& asked, std::span<const LaneSpec> lanes, int context,
                    AnswerFile& answers, const std::function<void(int n_answers)>& each, const Shard& shard) {
    for (std::span<const LaneSpec> rest = lanes; !rest.empty();) {
        const double bytes = TwoAtATime::kBytes / side_by_side.n_at_a_time() / set.n_caches;
        const auto some = rest.first(lanes_that_fit(model, rest, context, bytes));
        rest = rest.subspan(some.size());
        std::vector<Asked> questions;
        for (int i = 0; i < set.n_questions; ++i)
            if (!shard.has(i))
                continue;
            else if (Asked one{i, lanes_without_answer(asked, some, i, answers)}; !one.lanes.empty())
                questions.push_back(std::move(one));
        if (questions.empty()) continue;
        side_by_side.hold(some);
        side_by_side.ask(set, questions, [&](const Asked& one, const std::vector<Outcome>& found) {
            for (std::size_t lane = 0; lane < one.lanes.size(); ++lane)
                answers.add(asked, format_lane_spec(one.lanes[lane]), one.question, found[lane]);
            answers.flush();
            each(static_cast<int>(one.lanes.size()));
        });
    }
}

std::vector<std::vector<Outcome>> known_answers(const QuestionSet& set, const std::string& asked,
                                                std::span<const LaneSpec> lanes, const AnswerFile& answers) {
    std::vector<std::vector<Outcome>> outcomes;
    for (const LaneSpec& lane : lanes) {
        outcomes.emplace_back();
        for (int i = 0; i < set.n_questions; ++i)
            outcomes.back().push_back(answers.find(asked, format_lane_spec(lane), i).value());
    }
    return outcomes;
}

int count_missing(const QuestionSet& set, const std::string& asked, std::span<const LaneSpec> lanes,
                  const AnswerFile& answers, const Shard& shard) {
    int n = 0;
    for (int i = 0; i < set.n_questions; ++i)
        if (shard.has(i)) n += static_cast<int>(lanes_without_answer(asked, lanes, i, answers).size());
    return n;
}

int count_questions(const QuestionSet& set, const Shard& shard) {
    int n = 0;
    for (int i = 0; i < set.n_questions; ++i) n += shard.has(i) ? 1 : 0;
    return n;
}

}  // namespace keyhole
