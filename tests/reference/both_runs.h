/// A session and the same lanes of the reference, step by step, through changes, forks and rewinds. Runs on
/// the test's thread; a difference is a gtest failure.
#pragma once

#include "engine/backend/backend.h"
#include "engine/session/session.h"
#include "tests/reference/compared_text.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace reference {

class BothRuns {
  public:
    /// Reads the text's prompt; the text must outlive it.
    BothRuns(const ComparedText& text, keyhole::Backend& backend, const std::vector<Case>& lanes);

    void step(int n);
    void change(std::size_t lane, const Case& to);
    void fork(std::size_t lane);
    void rewind(int row);
    int n_gone = 0;

  private:
    using Lanes = std::vector<std::shared_ptr<Lane>>;
    void compare(const std::shared_ptr<const keyhole::StepTrace>& step);

    const ComparedText& text_;
    Lanes lanes_;
    std::vector<std::vector<Gone>> pending_;  // what commands evicted since the last row
    std::optional<keyhole::Session> session_;
    std::map<int, Lanes> after_;
    int row_ = 0;
};

}  // namespace reference
