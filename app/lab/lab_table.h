/// All hand-ins of a class in one table, and which of them are copied. Pure functions, for any thread; knows
/// no model.
#pragma once

#include "app/lab/lab_check.h"

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// A file of the table.
struct LabRow {
    std::string file;
    std::string fault;                  ///< why it cannot be read; empty: it was checked
    HandInCheck check;                  ///< if it was
    std::vector<std::string> copied{};  ///< what looks copied, and from whom; empty: nothing does
};

/// Fills in LabRow::copied. A hand-in is copied if its seed is not that of its name, if another one has its
/// name, or if at least two of its answers to exercises 1 to 3, whose numbers differ from student to student,
/// equal another's and are right no more often there. A line of its own that is long counts too.
void mark_copies(std::vector<LabRow>& rows);

/// Returns a line for each exercise, and the seed's if it is a wrong one. with_measured: also what was
/// measured.
std::string exercise_lines(const HandInCheck& check, bool with_measured);
std::string lab_table(std::span<const LabRow> rows);
std::string lab_csv(std::span<const LabRow> rows);
nlohmann::json lab_json(std::span<const LabRow> rows, bool with_measured);

}  // namespace keyhole
