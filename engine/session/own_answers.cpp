#include "engine/session/own_answers.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/session/answer_choice.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

namespace keyhole {

namespace {

bool is_touch(const Command& command) {
    return std::holds_alternative<EvictToken>(command) || std::holds_alternative<PinToken>(command) ||
           std::holds_alternative<UnpinToken>(command);
}

/// A lane that writes its own text does not know it ahead.
constexpr const char* kKnowsNoOwnText =
    "it ranks by the attention of a text that is given, and it knows no answer ahead";

/// Returns whether a lane of a group is the copy of lane 0 that the others read.
bool leads(const SessionState& group, const Lane& lane) {
    return group.follow && &lane == &group.lanes.front();
}

/// Returns how many tokens the user had evicted from a lane before the next row was fed.
int n_evicted_by_hand(const Lane& lane, int row) {
    std::set<int> positions;
    for (const LoggedCommand& logged : lane.log)
        if (const auto* evict = std::get_if<EvictToken>(&logged.command);
            evict != nullptr && logged.row <= row)
            positions.insert(evict->at.position);
    return static_cast<int>(positions.size());
}

bool is_done(const SessionState& group) {
    return group.lanes.size() <= (group.follow ? 1u : 0u);
}

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
        // Those to earlier turns are asked for again after a rewind to there.
        if (known.question.turn >= 0 && known.question.turn < turn_) return false;
        return std::none_of(now.lanes.begin(), now.lanes.end(), [&](const Lane& lane) {
            return asked_by(lane, now.sampling, turn_) == known.question;
        });
    });
    for (SessionState& group : groups_)
        std::erase_if(group.lanes, [&](const Lane& lane) {
            return !leads(group, lane) && find(question_of(lane, group.sampling, turn_)) == nullptr;
        });
    std::erase_if(groups_, is_done);
}

/// Drops what lanes answered that read another answer of lane 0 than it gives by now.
void OwnAnswers::forget_led(const SessionState& now) {
    const Question question = question_of(now.lanes.front(), now.sampling, turn_);
    if (leader_ && *leader_ != question) {
        std::erase_if(known_, [](const Known& known) { return needs_future(known.question.spec.policy); });
        std::erase_if(groups_, [](const SessionState& group) { return group.follow; });
    }
    leader_ = question;
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
    answer.n_by_hand = n_evicted_by_hand(lane, row);
    for (const LoggedCommand& logged : lane.log) {
        const auto* evict = std::get_if<EvictToken>(&logged.command);
        if (evict == nullptr || logged.row != row) continue;
        for (const int g : kv_heads_at(lane.model->layout(), evict->at))  // before the answer's next token
            stored.bits[to_index(g) * (to_index(row) + 1) + to_index(evict->at.position)] = false;
    }
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
    leader_ = question_of(now.lanes.front(), now.sampling, turn_);
    ++n_turns_begun_;
    std::erase_if(known_, [&](const Known& known) {  // a turn of before a rewind may have ended at this row
        return known.question.turn < 0 || known.question.turn >= now.row;
    });
    for (Known& known : known_)
        if (!known.answer.complete) known.answer.complete = known.answer.cut = true;
    groups_.clear();
    SessionState group, led;
    group.row = led.row = now.row;
    group.sampling = led.sampling = now.sampling;
    led.follow = true;
    for (const Lane& lane : now.lanes) {
        const bool is_led = needs_future(lane.policy());
        if (!lane.active()) {
            add_failure(lane, now.sampling, lane.failure.empty() ? "its text had ended" : lane.failure);
            continue;
        }
        if (is_led && !(now.follow && now.lanes.front().active())) {
            add_failure(lane, now.sampling, kKnowsNoOwnText);
            continue;
        }
        std::vector<Lane>& lanes = is_led ? led.lanes : group.lanes;
        try {
            if (is_led && lanes.empty()) lanes.push_back(now.lanes.front().copy());
            lanes.push_back(lane.copy());
        } catch (const Error& error) {  // the run itself goes on
            if (error.code() == ErrorCode::device) throw;
            add_failure(lane, now.sampling, error.what());
            continue;
        }
        known_.push_back({question_of(lane, now.sampling, turn_), first_answer(lanes.back(), now.row)});
    }
    for (SessionState* of : {&group, &led}) {
        for (Lane& lane : of->lanes) {
            lane.log.clear();  // what the user evicts from now on is not asked for
            lane.reading.forced.clear();
        }
        of->discard_outputs();
        add_group(std::move(*of));
    }
}

/// Takes what each lane has chosen; the group goes on where an answer is not complete.
void OwnAnswers::add_group(SessionState group) {
    if (is_done(group)) return;
    take_choice(group);
    if (!is_done(group)) groups_.push_back(std::move(group));
}

/// Returns a copy of a lane as it was, or is to be, at the end of the prompt. past: at that end; null: the
/// copy has not read the prompt.
Lane OwnAnswers::copy_after_prompt(const Lane& lane, const Question& question, const Lane* past) const {
    Lane copy = past != nullptr ? past->copy() : runner_.new_lane(*lane.info, question.spec);
    copy.id = lane.id;
    copy.log = question.touches;
    copy.spec = question.spec;
    copy.reading.forced = context_.start.forced;
    return copy;
}

/// Puts a copy of lane 0 in front of lanes that read its answer. They fail where it does.
void OwnAnswers::add_leader(SessionState& led, const SessionState& now, const SessionState* after_prompt,
                            const ProgressPart& progress) {
    const Question question = question_of(now.lanes.front(), now.sampling, -1);
    const Lane* past = past_of(question, after_prompt);
    try {
        Lane leader = copy_after_prompt(now.lanes.front(), question, past);
        if (past == nullptr) runner_.prefill(std::span(&leader, 1), now.sampling, progress, false);
        led.lanes.insert(led.lanes.begin(), std::move(leader));
    } catch (const Error& error) {
        if (error.code() == ErrorCode::device || error.code() == ErrorCode::cancelled) throw;
        for (const Lane& lane : led.lanes) add_failure(lane, now.sampling, error.what());
        led.lanes.clear();
    }
}

/// Copies the lanes of which nothing is known, as they are at the end of the prompt.
void OwnAnswers::begin(const SessionState& now, const SessionState* after_prompt,
                       const ProgressPart& progress) {
    SessionState group, led;
    group.row = led.row = context_.n_prompt() - 1;
    group.sampling = led.sampling = now.sampling;
    led.follow = true;
    std::vector<Lane> fresh;
    for (const Lane& lane : now.lanes) {
        const Question question = asked_by(lane, now.sampling, -1);
        if (find(question) != nullptr) continue;
        const bool is_led = needs_future(question.spec.policy);
        if (is_led && !now.follow) {
            add_failure(lane, now.sampling, kKnowsNoOwnText);
            continue;
        }
        const Lane* past = past_of(question, after_prompt);
        try {
            (past == nullptr ? fresh
             : is_led        ? led.lanes
                             : group.lanes)
                .push_back(copy_after_prompt(lane, question, past));
        } catch (const Error& error) {
            if (error.code() == ErrorCode::device) throw;
            add_failure(lane, now.sampling, error.what());
        }
    }
    try {
        if (!fresh.empty()) runner_.prefill(fresh, now.sampling, progress, false);
    } catch (const Error& error) {
        if (error.code() == ErrorCode::device || error.code() == ErrorCode::cancelled) throw;
        for (const Lane& lane : fresh) add_failure(lane, now.sampling, error.what());
        fresh.clear();
    }
    for (Lane& lane : fresh)
        (needs_future(lane.spec.policy) ? led.lanes : group.lanes).push_back(std::move(lane));
    if (!led.lanes.empty()) add_leader(led, now, after_prompt, progress);
    for (SessionState* of : {&group, &led}) {
        for (const Lane& lane : of->lanes)
            if (!leads(*of, lane))
                known_.push_back({question_of(lane, now.sampling, -1), first_answer(lane, of->row)});
        add_group(std::move(*of));
    }
}

/// Adds the token that each lane chose to its answer; lanes whose answer is complete leave the group.
void OwnAnswers::take_choice(SessionState& group) {
    const Lane* const leader = group.follow ? &group.lanes.front() : nullptr;
    const int led_to = leader != nullptr && leader->active() ? leader->predicted : -1;
    std::erase_if(group.lanes, [&](Lane& lane) {
        if (leads(group, lane)) return false;
        Known* known = find(question_of(lane, group.sampling, turn_));
        if (known == nullptr) return true;
        if (!lane.reading.forced.empty() && lane.failure.empty()) return false;
        const auto n_given = static_cast<std::ptrdiff_t>(n_given_tokens(context_, lane));
        LaneAnswer begun = std::move(known->answer);
        known->answer = answer_with_choice(context_, *context_.start.answer_end, lane,
                                           {lane.tokens.begin() + n_given, lane.tokens.end()}, group.row);
        known->answer.turn = turn_;
        known->answer.spec = std::move(begun.spec);
        known->answer.n_by_hand = std::max(begun.n_by_hand, n_evicted_by_hand(lane, group.row));
        known->answer.stored = std::move(begun.stored);
        if (leader != nullptr && lane.predicted != led_to && !known->answer.complete)
            known->answer.complete = known->answer.cut = true;  // it does not know what follows that token
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
    forget_led(now);
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
        std::erase_if(groups_, is_done);
    }
    return !groups_.empty();
}

}  // namespace keyhole
