/// What each lane answers by itself. In a run that follows lane 0, all lanes consume lane 0's tokens, so the
/// text does not show what a lane would have said. This continues a copy of every lane by the lane's own
/// choices. Used on the session's thread, by the session only.
#pragma once

#include "engine/run/answer.h"
#include "engine/session/lane_runner.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace keyhole {

class OwnAnswers {
  public:
    /// The context must outlive this object.
    explicit OwnAnswers(const RunContext& context);

    /// Brings the answers up to date with the lanes as they are now, and makes each incomplete answer longer
    /// by one token. An answer is that of a lane which has its present settings from the prompt on; tokens
    /// that a user evicts or pins are evicted and pinned at the same steps. Lanes of which nothing is known
    /// process the prompt first, together. A lane that ranks by the text ahead reads lane 0's answer, which
    /// it knows, and gives it as long as it would choose the same tokens: behind its first own one it is cut.
    ///
    /// after_prompt: the session's state at the end of the prompt; null: not kept. Returns false once all
    /// answers are complete. Throws Error(cancelled) if `progress` ends the prompt; the next call begins it
    /// again. A lane that cannot run keeps the reason in its answer.
    bool extend(const SessionState& now, const SessionState* after_prompt, const ProgressPart& progress);

    /// Begins the answers to a turn whose last token all lanes have just consumed, in copies of the lanes
    /// as they are. They replace those to the prompt or to an earlier turn, until the session goes back to
    /// before the turn; those to an earlier turn are cut where they were not complete. Later settings,
    /// evictions and pins change them no more; a lane that joins later has none.
    void begin_turn(const SessionState& now);

    /// Makes a lane's answer to the prompt that with these settings, until other ones are tried; nullopt:
    /// ends that. The lane stays as it is.
    void try_settings(int lane_id, std::optional<LaneSpec> spec);

    /// Returns LaneAnswer::turn of the answers.
    int turn() const { return turn_; }
    /// Returns how often answers to a turn have begun.
    int n_turns_begun() const { return n_turns_begun_; }

    /// Returns whether extend() would have to process the prompt.
    bool needs_prompt(const SessionState& now, const SessionState* after_prompt) const;
    /// Returns the answers in the order of the lanes; without those that have not begun.
    std::vector<LaneAnswer> list(const SessionState& now) const;
    /// Returns the allocated bytes of the copies.
    std::int64_t bytes() const;

  private:
    /// What an answer depends on, beside the prompt; of an answer to a turn, the lane and the turn alone.
    struct Question {
        int lane_id = 0;
        int turn = -1;  // as LaneAnswer
        LaneSpec spec;
        std::vector<LoggedCommand> touches;  // evict, pin and unpin
        Sampling sampling;
        bool operator==(const Question&) const = default;
    };
    struct Known {
        Question question;
        LaneAnswer answer;  // what it begins with stays: see first_answer()
    };
    const RunContext& context_;
    const LaneRunner runner_;
    std::vector<Known> known_;
    int turn_ = -1;  // that the answers follow
    int n_turns_begun_ = 0;
    /// Copies that began together and are at the same row. A lane leaves once its answer is complete. Where a
    /// group follows, its first lane is a copy of lane 0, which only leads the others.
    std::vector<SessionState> groups_;
    std::optional<Question> leader_;  // what that copy answers

    std::optional<std::pair<int, LaneSpec>> tried_;  // id of a lane, and the settings that it answers with

    static Question question_of(const Lane& lane, const Sampling& sampling, int turn);
    /// Returns the question that a lane of the session asks; question_of() is that of a copy.
    Question asked_by(const Lane& lane, const Sampling& sampling, int turn) const;
    /// Returns the turn that answers follow. While the text of a turn is read, those before it stay.
    int turn_at(const SessionState& now) const;
    /// Returns the lane at the end of the prompt; null: not kept with these settings.
    static const Lane* past_of(const Question& question, const SessionState* after_prompt);
    void forget_led(const SessionState& now);
    Lane copy_after_prompt(const Lane& lane, const Question& question, const Lane* past) const;
    void add_leader(SessionState& led, const SessionState& now, const SessionState* after_prompt,
                    const ProgressPart& progress);
    void add_group(SessionState group);
    Known* find(const Question& question);
    const Known* find(const Question& question) const;
    void forget_old(const SessionState& now);
    LaneAnswer first_answer(const Lane& lane, int row) const;
    void add_failure(const Lane& lane, const Sampling& sampling, const std::string& why);
    void begin(const SessionState& now, const SessionState* after_prompt, const ProgressPart& progress);
    void feed(SessionState& group);
    void take_choice(SessionState& group);
};

}  // namespace keyhole
