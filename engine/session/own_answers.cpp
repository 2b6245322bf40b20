#include "engine/session/own_answers.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/session/answer_choice.h"

#include <algorithm>
#include <utility>

namespace keyhole {

namespace {

bool is_touch(const Command& command) {
    return std::holds_alternative<EvictToken>(command) || std::holds_alternative<PinToken>(command) ||
           std::holds_alternative<UnpinToken>(command);
}

/// A lane that writes its own text does not know it ahead.
constexpr const char* kKnowsNoOwnText =
    "it ranks by the attention of the text that the lanes follow, and an answer of its own would be another";

}  // namespace

OwnAnswers::OwnAnswers(const RunContext& context) : context_(context), runner_(context, RowRequest{}) {}

OwnAnswers::Question OwnAnswers::question_of(const Lane& lane, const Sampling& sampling, int turn) {
    if (turn >= 0) return {lane.id, turn, {}, {}, {}};
    Question question{lane.id, turn, lane.spec, {}, sampling};
    question.spec.policy.shadow = false;  // changes no answer, and costs memory
    question.spec.name.clear();
    for (const LoggedCommand& logged : lane.log)
        if (is_touch(logged.command)) question.touches.push_back(logged);
    return question;
}

OwnAnswers::Question OwnAnswers::asked_by(const Lane& lane, const Sampling& sampling, int turn) const {
    Question question = question_of(lane, sampling, turn);
    if (turn < 0 && tried_ && tried_->first == lane.id) question.spec = tried_->second;
    return question;
}

void OwnAnswers::try_settings(int lane_id, std::optional<LaneSpec> spec) {
    tried_.reset();
    if (!spec) return;
    spec->policy.shadow = false;  // as in question_of()
    spec->name.clear();
    tried_ = {lane_id, std::move(*spec)};
}

int OwnAnswers::turn_at(const SessionState& now) const {
    const int turn_end = now.turn_end();
    return turn_end < 0 || now.row >= turn_end ? turn_end : turn_;
}

const OwnAnswers::Known* OwnAnswers::find(const Question& question) const {
    const auto found = std::find_if(known_.begin(), known_.end(),
                                    [&](const Known& known) { return known.question == question; });
    return found == known_.end() ? nullptr : &*found;
}

const Lane* OwnAnswers::past_of(const Question& question, const SessionState* after_prompt) {
    if (after_prompt == nullptr || after_prompt->sampling != question.sampling) return nullptr;
    for (const Lane& lane : after_prompt->lanes)
        if (lane.id == question.lane_id && question_of(lane, question.sampling, -1).spec == question.spec)
            return &lane;
    return nullptr;
}

bool OwnAnswers::needs_prompt(const SessionState& now, const SessionState* after_prompt) const {
    if (turn_at(now) >= 0) return false;
    return std::any_of(now.lanes.begin(), now.lanes.end(), [&](const Lane& lane) {
        const Question question = asked_by(lane, now.sampling, -1);
        return find(question) == nullptr && past_of(question, after_prompt) == nullptr;
    });
}

OwnAnswers::Known* OwnAnswers::find(const Question& question) {
    return const_cast<Known*>(std::as_const(*this).find(question));
}

std::vector<LaneAnswer> OwnAnswers::list(const SessionState& now) const {
    std::vector<LaneAnswer> list;
    for (const Lane& lane : now.lanes)
        if (const Known* known = find(asked_by(lane, now.sampling, turn_at(now))))
            list.push_back(known->answer);
    return list;
}

std::int64_t OwnAnswers::bytes() const {
    std::int64_t sum = 0;
    for (const SessionState& group : groups_)
        for (const Lane& lane : group.lanes) sum += lane.cache->use().allocated_bytes;
    return sum;
}

/// Drops what answers questions that no lane asks any more.
void OwnAnswers::forget_old(const SessionState& now) {
    std::erase_if(known_, [&](const Known& known) {
        return std::none_of(now.lanes.begin(), now.lanes.end(), [&](const Lane& lane) {
            return asked_by(lane, now.sampling, turn_) == known.question;
        });
    });
    for (SessionState& group : groups_)
        std::erase_if(group.lanes, [&](const Lane& lane) {
            return find(question_of(lane, group.sampling, turn_)) == nullptr;
        });
    std::erase_if(groups_, [](const SessionState& group) { return group.lanes.empty(); });
}

/// Returns the answer that a lane begins after a row, without a token yet.
LaneAnswer OwnAnswers::first_answer(const Lane& lane, int row) const {
    LaneAnswer answer;
    answer.lane_id = lane.id;
    answer.turn = turn_;
    answer.spec = format_lane_spec(lane.spec);
    StoredSet stored{row, lane.model->layout().n_kv_heads(), {}};
    stored.bits.resize(to_index(stored.n_heads) * (to_index(row) + 1));
    for (int g = 0; g < stored.n_heads; ++g)
        for (const std::int32_t p : lane.cache->stored_positions(g))
            stored.bits[to_index(g) * (to_index(row) + 1) + to_index(p)] = true;
    answer.stored = std::make_shared<const StoredSet>(std::move(stored));
    return answer;
}

void OwnAnswers::add_failure(const Lane& lane, const Sampling& sampling, const std::string& why) {
    LaneAnswer failed;
    failed.lane_id = lane.id;
    failed.complete = true;
    failed.failure = why;
    failed.turn = turn_;
    Question question = asked_by(lane, sampling, turn_);
    failed.spec = format_lane_spec(turn_ < 0 ? question.spec : lane.spec);
    known_.push_back({std::move(question), failed});
}

void OwnAnswers::begin_turn(const SessionState& now) {
    turn_ = now.row;
    known_.clear();  // a turn of before a rewind may have ended at the same row
    groups_.clear();
    SessionState group;
    group.row = now.row;
    group.sampling = now.sampling;
    for (const Lane& lane : now.lanes) {
        if (!lane.active()) {
            add_failure(lane, now.sampling, lane.failure.empty() ? "its text had ended" : lane.failure);
            continue;
        }
        if (needs_future(lane.policy())) {
            add_failure(lane, now.sampling, kKnowsNoOwnText);
            continue;
        }
        try {
            group.lanes.push_back(lane.copy());
        } catch (const Error& error) {  // the run itself goes on
            if (error.code() == ErrorCode::device) throw;
            add_failure(lane, now.sampling, error.what());
            continue;
        }
        group.lanes.back().log.clear();  // what the user evicts from now on is not asked for
        group.lanes.back().reading.forced.clear();
        known_.push_back({question_of(lane, now.sampling, turn_), first_answer(group.lanes.back(), now.row)});
    }
    group.discard_outputs();
    take_choice(group);
    if (!group.lanes.empty()) groups_.push_back(std::move(group));
}

/// Copies the lanes of which nothing is known, as they are at the end of the prompt.
void OwnAnswers::begin(const SessionState& now, const SessionState* after_prompt,
                       const ProgressPart& progress) {
    SessionState group;
    group.row = context_.n_prompt() - 1;
    group.sampling = now.sampling;
    std::vector<Lane> fresh;
    for (const Lane& lane : now.lanes) {
        const Question question = asked_by(lane, now.sampling, -1);
        if (find(question) != nullptr) continue;
        if (needs_future(question.spec.policy)) {
            add_failure(lane, now.sampling, kKnowsNoOwnText);
            continue;
        }
        const Lane* past = past_of(question, after_prompt);
        try {
            Lane copy = past != nullptr ? past->copy() : runner_.new_lane(*lane.info, question.spec);
            copy.id = lane.id;
            copy.log = question.touches;
            copy.spec = question.spec;
            copy.reading.forced = context_.start.forced;
            (past != nullptr ? group.lanes : fresh).push_back(std::move(copy));
        } catch (const Error& error) {
            if (error.code() == ErrorCode::device) throw;
            add_failure(lane, now.sampling, error.what());
        }
    }
    if (!fresh.empty()) runner_.prefill(fresh, now.sampling, progress, false);
    for (Lane& lane : fresh) group.lanes.push_back(std::move(lane));
    if (group.lanes.empty()) return;
    for (const Lane& lane : group.lanes)
        known_.push_back({question_of(lane, now.sampling, -1), first_answer(lane, group.row)});
    take_choice(group);
    if (!group.lanes.empty()) groups_.push_back(std::move(group));
}

/// Adds the token that each lane chose to its answer; lanes whose answer is complete leave the group.
void OwnAnswers::take_choice(SessionState& group) {
    std::erase_if(group.lanes, [&](Lane& lane) {
        Known* known = find(question_of(lane, group.sampling, turn_));
        if (known == nullptr) return true;
        if (!lane.reading.forced.empty() && lane.failure.empty()) return false;
        const auto n_given = static_cast<std::ptrdiff_t>(n_given_tokens(context_, lane));
        LaneAnswer begun = std::move(known->answer);
        known->answer = answer_with_choice(context_, *context_.start.answer_end, lane,
                                           {lane.tokens.begin() + n_given, lane.tokens.end()}, group.row);
        known->answer.turn = turn_;
        known->answer.spec = std::move(begun.spec);
        known->answer.stored = std::move(begun.stored);
        return known->answer.complete;
    });
}

void OwnAnswers::feed(SessionState& group) {
    for (Lane& lane : group.lanes) {
        const std::vector<LoggedCommand> touches = lane.log;
        for (const LoggedCommand& touch : touches)
            if (touch.row == group.row) runner_.apply(lane, touch.command, group.row);
        lane.log = touches;  // apply() logs the command once more
    }
    runner_.feed_row(group);
    group.discard_outputs();
    take_choice(group);
}

bool OwnAnswers::extend(const SessionState& now, const SessionState* after_prompt,
                        const ProgressPart& progress) {
    turn_ = turn_at(now);
    forget_old(now);
    const auto is_unknown = [&](const Lane& lane) {
        return find(asked_by(lane, now.sampling, turn_)) == nullptr;
    };
    if (turn_ >= 0)  // of lanes that are known no more, or never were
        for (const Lane& lane : now.lanes)
            if (is_unknown(lane)) add_failure(lane, now.sampling, "it joined, or came back, after the turn");
    if (std::any_of(now.lanes.begin(), now.lanes.end(), is_unknown)) {
        begin(now, after_prompt, progress);
    } else {
        for (SessionState& group : groups_) feed(group);
        std::erase_if(groups_, [](const SessionState& group) { return group.lanes.empty(); });
    }
    return !groups_.empty();
}

}  // namespace keyhole
