/// Measures the answers of hand-ins: runs the lanes of the exercises on the student's own prompt and on
/// hidden questions of the student's seed, and compares. No expected number is kept anywhere. Main thread;
/// knows sessions.
#pragma once

#include "app/lab/hand_in.h"
#include "engine/eval/two_at_a_time.h"

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

struct ExerciseCheck {
    bool answered = false;  ///< some of it
    bool passes = false;
    std::string text;      ///< one line; does not give a prediction away that is wrong
    std::string measured;  ///< what the engine measured, for the teacher
};

struct HandInCheck {
    HandIn hand_in;
    std::array<ExerciseCheck, kExercises> exercises;
    int n_passed() const;
    bool passes() const { return n_passed() == kExercises && hand_in.has_own_seed(); }
};

class LabBench {
  public:
    /// backend: of the model; it must outlive this object. n_threads: as in BackendOptions. salt: see
    /// hidden_seed().
    LabBench(std::shared_ptr<const Model> model, Backend& backend, int n_threads,
             std::shared_ptr<const TaskTexts> texts, std::string salt);

    /// Measures with the seed of the name, whatever seed the hand-in has. A lane that is refused or fails
    /// fails its own exercise. Throws the session's Error.
    HandInCheck check(const HandIn& hand_in);

  private:
    std::vector<std::vector<Outcome>> ask_hidden(const std::vector<std::string>& lanes, std::uint64_t seed);
    void check_stored(const StudentNumbers& numbers, HandInCheck& out);
    void check_smallest(const StudentNumbers& numbers, int n_kept_from, HandInCheck& out);
    void check_hidden(const StudentNumbers& numbers, HandInCheck& out);
    ExerciseCheck check_byte_lane(const StudentNumbers& numbers, const std::string& lane);
    ExerciseCheck check_own_lane(const StudentNumbers& numbers, const std::string& lane,
                                 const std::vector<Outcome>& h2o);

    std::shared_ptr<const Model> model_;
    Backend& backend_;
    std::shared_ptr<const TaskTexts> texts_;
    std::string salt_;
    TwoAtATime side_by_side_;
    std::uint64_t asked_seed_ = 0;
    std::map<std::string, std::vector<Outcome>> asked_;  ///< by lane, on the questions of that seed
};

}  // namespace keyhole
