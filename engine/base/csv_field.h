/// Fields and lines of a CSV file. Any thread; knows no table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Returns a field of a CSV line, quoted where necessary.
std::string csv_field(const std::string& text);

/// Splits a CSV line into its fields.
std::vector<std::string> split_csv(std::string_view line);
/// Returns the lines of a CSV text, each as its fields. A line may go on where its field in quotes does.
std::vector<std::vector<std::string>> csv_lines(std::string_view text);

/// Returns a table with one more column, made_by: its first line has the text, the others nothing, so that a
/// table that is moved alone still says what made it, and is read as any other. The table as it is where the
/// text is empty. csv: with a header, and a line end after every line.
std::string with_made_by(const std::string& csv, const std::string& made_by);

}  // namespace keyhole
